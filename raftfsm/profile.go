package raftfsm

import (
	"fmt"
	"hash/maphash"
	"math"
	"strings"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// profile is what many timers share. It is comparable: multiplier is the bits of the number. Extra says that there is more in the
// blob, parked that the timer is not armed: so a plain timer needs no room for either.
type profile struct {
	namespace, queue, contentType     string
	lease, initialBackoff, maxBackoff int64
	multiplier                        uint64
	maxAttempts                       uint32
	extra, parked                     bool
}

func profileOf(namespace, queue, contentType string, p RetryPolicy) profile {
	return profile{
		namespace: namespace, queue: queue, contentType: contentType, lease: p.Lease, initialBackoff: p.InitialBackoff,
		maxBackoff: p.MaxBackoff, multiplier: math.Float64bits(p.Multiplier), maxAttempts: p.MaxAttempts,
	}
}

func (p *profile) policy() RetryPolicy {
	return RetryPolicy{p.lease, p.initialBackoff, p.maxBackoff, math.Float64frombits(p.multiplier), p.maxAttempts}
}

// mark notes what the extra part of a timer means for it.
func (p *profile) mark(x *logv1.Extra) {
	p.extra = x.SizeVT() > 0
	p.parked = x.GetPaused() || x.GetDead() != nil
}

// isDead says that it is one of dead letters.
func (p *profile) isDead() bool { return p.namespace[0] == 0 }

// fits says that it is of the namespace and the queue, where they are not empty, and not one of dead letters.
func (p *profile) fits(namespace, queue string) bool {
	return (namespace == "" || namespace == p.namespace) && (queue == "" || queue == p.queue) && !p.isDead()
}

// profileIndex counts how many timers use each profile of a table and finds them by content. Numbers are a replica's own.
// Guarded by FSM.mu.
type profileIndex struct {
	refs   []uint32
	byText map[profile]uint32
	// recent is the profile used last for each of some hashes of queue names.
	recent [64]uint32
	// free are numbers that may be given anew; retired are those that a snapshot may still look at.
	free, retired []uint32
}

// intern counts one more use of the profile and returns its number. The texts are copied if it is new.
func (t *table) intern(seed maphash.Seed, want *profile) uint32 {
	x := &t.index
	recent := &x.recent[maphash.String(seed, want.queue)%uint64(len(x.recent))]
	if n := *recent; int(n) < len(x.refs) && x.refs[n] > 0 && t.profiles[n] == *want {
		x.refs[n]++
		return n
	}
	n, ok := x.byText[*want]
	if !ok {
		n = t.addProfile(*want)
	}
	x.refs[n]++
	*recent = n
	return n
}

func (t *table) addProfile(p profile) uint32 {
	x := &t.index
	p.namespace, p.queue, p.contentType = strings.Clone(p.namespace), strings.Clone(p.queue), strings.Clone(p.contentType)
	if t.alive == 0 {
		x.free, x.retired = append(x.free, x.retired...), x.retired[:0]
	}
	var n uint32
	if last := len(x.free) - 1; last >= 0 && t.alive == 0 {
		n, x.free = x.free[last], x.free[:last]
		t.profiles[n] = p
	} else {
		n = uint32(len(t.profiles))
		t.profiles, x.refs = append(t.profiles, p), append(x.refs, 0)
	}
	if x.byText == nil {
		x.byText = map[profile]uint32{}
	}
	x.byText[p] = n
	return n
}

// forgo counts one use less. The texts of a profile that nobody uses stay until its number is given anew, since a snapshot
// may look at them; so do at most as many as were ever in use at once.
func (t *table) forgo(n uint32) {
	x := &t.index
	if x.refs[n]--; x.refs[n] > 0 {
		return
	}
	delete(x.byText, t.profiles[n])
	if len(x.byText) == 0 {
		// A new slice and map, so that a time of many profiles leaves nothing behind.
		t.profiles, t.index = nil, profileIndex{}
		return
	}
	x.retired = append(x.retired, n)
}

func (t *table) checkProfiles(uses []uint32) error {
	x := &t.index
	if len(t.profiles) != len(uses) || len(x.refs) != len(uses) {
		return fmt.Errorf("%d profiles, %d counts", len(t.profiles), len(x.refs))
	}
	idle := 0
	for n, count := range uses {
		if count != x.refs[n] {
			return fmt.Errorf("profile %d is used by %d timers, counted %d", n, count, x.refs[n])
		}
		if count == 0 {
			idle++
		} else if got, ok := x.byText[t.profiles[n]]; !ok || got != uint32(n) {
			return fmt.Errorf("profile %d is not what its content finds", n)
		}
	}
	if len(x.byText)+idle != len(uses) || len(x.free)+len(x.retired) != idle {
		return fmt.Errorf("%d profiles, %d in the index, %d free, %d retired", len(uses), len(x.byText), len(x.free), len(x.retired))
	}
	return nil
}
