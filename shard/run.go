package shard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Run runs the replica until the context ends, Close is called or the replica stops by itself. It returns when all has
// stopped, in bounded time; the error says why the replica stopped by itself, or what did not stop. It is called once.
func (s *Shard) Run(parent context.Context) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	s.mu.Lock()
	if s.state != opened {
		s.mu.Unlock()
		return fmt.Errorf("run shard %d: %w", s.c.ID, ErrUnavailable)
	}
	s.state, s.cancel = running, cancel
	s.mu.Unlock()
	defer close(s.done)

	var helpers, writer sync.WaitGroup
	quit, stopWriter := make(chan struct{}), make(chan struct{})
	notify := make(chan bool, 8)
	writer.Go(func() { s.disk.run(stopWriter) })
	helpers.Go(func() { s.steward.listen(notify, quit) })
	err := s.start(notify)
	if err == nil {
		helpers.Go(func() { s.proposer.send(quit) })
		helpers.Go(func() { s.reads.run(quit) })
		helpers.Go(func() { s.snapshots.run(ctx) })
		s.steward.run(ctx)
		if cause := context.Cause(ctx); parent.Err() == nil && !errors.Is(cause, context.Canceled) {
			err = cause
		}
	}
	err = errors.Join(err, s.stop(&helpers, quit))
	close(stopWriter)
	err = errors.Join(err, s.closeStores(&writer, err))
	s.end(err, &writer)
	if err != nil {
		return fmt.Errorf("shard %d: %w", s.c.ID, err)
	}
	return nil
}

// start starts Raft. It restores the last snapshot before it returns.
func (s *Shard) start(notify chan<- bool) (err error) {
	defer func() {
		// Raft panics if it cannot write its term or read its log.
		p := recover()
		if cause, _ := p.(error); errors.Is(cause, raft.ErrLogNotFound) {
			// Not a DamagedError: that a snapshot could not be read may pass.
			err = fmt.Errorf("start Raft: the log does not reach back to the newest snapshot that can be read: %w", cause)
		} else if p != nil {
			err = fmt.Errorf("start Raft: panic: %v", p)
		}
	}()
	if err := s.disk.settle(); err != nil {
		return fmt.Errorf("start Raft: %w", err)
	}
	log, err := raft.NewLogCache(cachedEntries, s.disk)
	if err != nil {
		return err
	}
	config := s.raftConfig()
	config.NotifyCh = notify
	r, err := raft.NewRaft(config, &replica{s: s}, log, s.disk, s.stores.Snapshots, s.transport)
	if err != nil {
		return fmt.Errorf("start Raft: %w", err)
	}
	s.candidates.Store(WatchCandidates(r, s.d.Monotonic))
	s.disk.running.Store(true)
	s.raft.Store(r)
	return nil
}

// stop stops all but the writer: first what takes work, then firing, then snapshots and Raft, then what serves Raft.
func (s *Shard) stop(helpers *sync.WaitGroup, quit chan struct{}) error {
	close(s.stopping)
	s.proposer.become(stopped, 0, ErrUnavailable)
	s.steward.stop()
	var err error
	r := s.raft.Load()
	var shutdown raft.Future
	if r != nil {
		shutdown = r.Shutdown()
	}
	// What Raft still asks of others ends now: they may be stopping too, and two that wait for each other's answers would
	// wait for a call's whole time-out.
	_ = s.transport.Close()
	if r != nil {
		close(s.disk.quit)
		if !s.within(func() { _ = shutdown.Error() }) {
			err = fmt.Errorf("%w: Raft runs on after %v", ErrSlowStop, s.c.StopTimeout)
		}
	}
	close(quit)
	if !s.within(func() { helpers.Wait(); s.pipelines.Wait() }) {
		err = errors.Join(err, fmt.Errorf("%w: its goroutines run on after %v", ErrSlowStop, s.c.StopTimeout))
	}
	s.d.Loop.Remove(s.exec)
	return err
}

// closeStores closes the log, unless Raft may still use it.
func (s *Shard) closeStores(writer *sync.WaitGroup, stopped error) error {
	s.mu.Lock()
	s.state = closed
	s.mu.Unlock()
	if errors.Is(stopped, ErrSlowStop) {
		_ = s.disk.fail("stop", ErrSlowStop) // a Raft that runs on must not write where the next one reads
		return nil
	}
	s.closing = true
	var err error
	if !s.within(func() {
		writer.Wait()
		if s.stores.Close != nil {
			err = s.stores.Close()
		}
	}) {
		return fmt.Errorf("%w: the log is not closed after %v", ErrSlowStop, s.c.StopTimeout)
	}
	if err != nil {
		return fmt.Errorf("close the log: %w", err)
	}
	return nil
}

// Ended is closed when nothing of the replica runs any more and its log is closed: before Run returns, but for ErrSlowStop. Until
// then the replica must not be opened again in this process. It never is if Run was not called.
func (s *Shard) Ended() <-chan struct{} { return s.ended }

// end closes ended, at once unless the stop was slow.
func (s *Shard) end(stopped error, writer *sync.WaitGroup) {
	if !errors.Is(stopped, ErrSlowStop) {
		close(s.ended)
		return
	}
	go func() {
		defer close(s.ended)
		s.late.Wait()
		if s.closing {
			return // what was late was the closing
		}
		writer.Wait()
		if s.stores.Close != nil {
			if err := s.stores.Close(); err != nil {
				s.log.Error("shard: the log of a replica that stopped late is not closed cleanly", "error", err)
			}
		}
	}()
}

// within runs f and waits for it, at most StopTimeout; false if it runs on.
func (s *Shard) within(f func()) bool {
	done := make(chan struct{})
	s.late.Go(func() {
		defer close(done)
		f()
	})
	limit := time.NewTimer(s.c.StopTimeout)
	defer limit.Stop()
	select {
	case <-done:
		return true
	case <-limit.C:
		return false
	}
}

// Close ends Run and waits for it; a replica that was never run it closes. It may be called again.
func (s *Shard) Close() error {
	s.mu.Lock()
	before := s.state
	if before == opened {
		s.state = closed
	}
	cancel := s.cancel
	s.mu.Unlock()
	switch before {
	case running:
		cancel(context.Canceled)
		<-s.done
	case opened:
		close(s.stopping)
		s.proposer.become(stopped, 0, ErrUnavailable)
		s.d.Loop.Remove(s.exec)
		err := s.transport.Close()
		if s.stores.Close != nil {
			err = errors.Join(err, s.stores.Close())
		}
		return err
	}
	return nil
}
