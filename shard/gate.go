package shard

import "context"

// Gate lets a number of holders in at once. The replicas of a node share one, so that they snapshot in turn.
type Gate struct{ places chan struct{} }

// NewGate returns a gate with n places, at least one.
func NewGate(n int) *Gate { return &Gate{make(chan struct{}, max(1, n))} }

// Acquire waits for a place, at most as long as ctx; then its error is returned. A nil gate is always open.
func (g *Gate) Acquire(ctx context.Context) error {
	if g == nil {
		return nil
	}
	select {
	case g.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Release gives the place back.
func (g *Gate) Release() {
	if g != nil {
		<-g.places
	}
}
