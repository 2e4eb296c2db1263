package raftfsm

import (
	"fmt"
	"sync"
)

// Options shape a shard's state. Retention, MaxFinished and MaxRequests decide what a replica forgets, so they must be equal
// on all replicas of a shard; Hash shows it if they are not.
type Options struct {
	// Shard is the number of the shard; it names the replica in errors.
	Shard uint32
	// Retention is how long finished timers and writes with a request ID are remembered, in milliseconds of the entries'
	// clock; default DefaultRetentionMillis.
	Retention int64
	// MaxFinished bounds the finished timers, default DefaultMaxFinished; MaxRequests the remembered writes, default
	// DefaultMaxRequests. Both are at most MaxWindow; beyond them the oldest are forgotten.
	MaxFinished, MaxRequests int
	// Feed takes the ops; nil drops them.
	Feed Feed
	// Repeats computes due times while this replica leads; without it Stamp refuses timers that repeat.
	Repeats Repeats
}

// Defaults and limits of Options.
const (
	DefaultRetentionMillis = 600_000
	DefaultMaxFinished     = 65_536
	DefaultMaxRequests     = 131_072
	MaxWindow              = 1 << 20
)

func (o Options) withDefaults() Options {
	if o.Retention <= 0 {
		o.Retention = DefaultRetentionMillis
	}
	if o.MaxFinished <= 0 {
		o.MaxFinished = DefaultMaxFinished
	}
	if o.MaxRequests <= 0 {
		o.MaxRequests = DefaultMaxRequests
	}
	o.MaxFinished, o.MaxRequests = min(o.MaxFinished, MaxWindow), min(o.MaxRequests, MaxWindow)
	return o
}

// FSM is the replicated state of one shard, with what the leader's side notes beside it.
type FSM struct {
	// o is set before sharing.
	o Options

	mu sync.Mutex
	// s is replaced as a whole by Restore. Guarded by mu.
	s *state
	// lead is what the leader's side notes. Guarded by mu.
	lead leadership
	// poison is the error after which nothing is applied any more. Guarded by mu.
	poison error
	// ops collects what one call pushes. Guarded by mu.
	ops []Op
	// buried counts the dead letters of the entry that is being applied, looked those that were looked at. Guarded by mu.
	buried uint32
	looked int
	// hashes and slots are buffers. Guarded by mu.
	hashes []uint64
	slots  []uint32
	// touched keeps what is read ahead from being optimized away. Guarded by mu.
	touched uint64
}

// room is what Apply needs while it runs. The shards of a process share what there is, since what one used a moment ago is in the
// caches.
type room struct {
	in                  entry
	scratch, attributes []byte
}

var rooms = sync.Pool{New: func() any { return new(room) }}

// takeRoom is called with mu held; leaveRoom ends it.
func (f *FSM) takeRoom() *room {
	r := rooms.Get().(*room)
	f.s.scratch, f.s.attributes = r.scratch, r.attributes
	return r
}

func (f *FSM) leaveRoom(r *room) {
	r.scratch, r.attributes = f.s.scratch, f.s.attributes
	f.s.scratch, f.s.attributes = nil, nil
	r.in.reset()
	rooms.Put(r)
}

// New returns an empty state.
func New(o Options) *FSM {
	o = o.withDefaults()
	return &FSM{o: o, s: newState(o)}
}

// maxKeptOps is how large the buffer of ops stays.
const maxKeptOps = 4 * MaxEntryCommands

// push hands the collected ops over, in one call. Called with mu held.
func (f *FSM) push() {
	if len(f.ops) > 0 && f.o.Feed != nil {
		f.o.Feed.PushN(f.ops)
	}
	f.ops = f.ops[:0]
	if cap(f.ops) > maxKeptOps {
		f.ops = nil
	}
}

func (f *FSM) fail(format string, args ...any) error {
	f.poison = fmt.Errorf("shard %d: "+format, append([]any{f.o.Shard}, args...)...)
	return f.poison
}
