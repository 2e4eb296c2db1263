package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// quietly logs nothing.
var quietly = slog.New(slog.DiscardHandler)

// run is a log that runs.
type runningLog struct {
	*Log
	cancel context.CancelFunc
	all    sync.WaitGroup
	err    error
}

func start(l *Log) *runningLog {
	ctx, cancel := context.WithCancel(context.Background())
	r := &runningLog{Log: l, cancel: cancel}
	r.all.Go(func() { r.err = l.Run(ctx) })
	return r
}

// stop returns the errors of Run and Close.
func (r *runningLog) stop() error {
	r.cancel()
	r.all.Wait()
	return errors.Join(r.err, r.Close())
}

func startIn(t *testing.T, dir string, o Options) *runningLog {
	t.Helper()
	l, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return start(l)
}

// op is one call of a group.
type op struct {
	entries    []*raft.Log
	first, end uint64 // removes, if end is not 0
	key, value string
}

func (o op) do(s interface {
	raft.LogStore
	raft.StableStore
}) error {
	switch {
	case o.entries != nil:
		return s.StoreLogs(o.entries)
	case o.key != "":
		return s.Set([]byte(o.key), []byte(o.value))
	}
	return s.DeleteRange(o.first, o.end)
}

// model is what a group must hold.
type model struct {
	entries map[uint64]string
	keys    map[string]string
}

func newModel() model { return model{map[uint64]string{}, map[string]string{}} }

func (m model) clone() model { return model{maps.Clone(m.entries), maps.Clone(m.keys)} }

func (m model) apply(o op) {
	switch {
	case o.entries != nil:
		for _, e := range o.entries {
			m.entries[e.Index] = show(e)
		}
	case o.key != "":
		m.keys[o.key] = o.value
	default:
		maps.DeleteFunc(m.entries, func(i uint64, _ string) bool { return i >= o.first && i <= o.end })
	}
}

func (m model) String() string {
	var b []byte
	for _, i := range slices.Sorted(maps.Keys(m.entries)) {
		b = append(append(append(strconv.AppendUint(b, i, 10), '='), m.entries[i]...), ' ')
	}
	for _, k := range slices.Sorted(maps.Keys(m.keys)) {
		b = append(append(append(append(b, k...), '='), m.keys[k]...), ' ')
	}
	return string(b)
}

func show(e *raft.Log) string {
	b := make([]byte, 0, 64)
	for _, n := range []int64{int64(e.Index), int64(e.Term), int64(e.Type), int64(crc32.ChecksumIEEE(e.Data)), int64(len(e.Data)), e.AppendedAt.UnixNano()} {
		b = append(strconv.AppendInt(b, n, 10), '/')
	}
	return string(append(b, e.Extensions...))
}

// read is what a group holds, read through its interfaces.
func read(g *Group) (model, error) {
	m := newModel()
	if err := g.Err(); err != nil {
		return m, err
	}
	g.mu.RLock()
	var all []uint64
	for _, run := range g.index.runs {
		for i := range run.refs {
			all = append(all, run.first+uint64(i))
		}
	}
	keys := slices.Collect(maps.Keys(g.keys))
	g.mu.RUnlock()
	for _, i := range all {
		var e raft.Log
		if err := g.GetLog(i, &e); err != nil {
			return m, err
		}
		m.entries[i] = show(&e)
	}
	for _, k := range keys {
		v, err := g.Get([]byte(k))
		if err != nil {
			return m, err
		}
		m.keys[k] = string(v)
	}
	first, _ := g.FirstIndex()
	last, _ := g.LastIndex()
	if len(all) > 0 && (first != all[0] || last != all[len(all)-1]) {
		return m, fmt.Errorf("first %d, last %d of %v", first, last, all)
	}
	return m, nil
}

// draw makes a call that Raft could make, or, rarely, one that it does not.
func draw(rnd *rand.Rand, m model, longest int) op {
	indexes := slices.Sorted(maps.Keys(m.entries))
	first, last := uint64(1), uint64(0)
	if len(indexes) > 0 {
		first, last = indexes[0], indexes[len(indexes)-1]
	}
	switch k := rnd.IntN(20); {
	case k < 3:
		return op{key: []string{"CurrentTerm", "LastVoteTerm", "LastVoteCand"}[rnd.IntN(3)], value: fmt.Sprint(rnd.IntN(1000))}
	case k == 3 && last >= first: // a snapshot
		return op{first: first, end: first + rnd.Uint64N(last-first+1)}
	case k == 4 && last >= first: // a conflict
		return op{first: first + rnd.Uint64N(last-first+1), end: last}
	case k == 5 && rnd.IntN(4) == 0:
		return op{first: rnd.Uint64N(last + 2), end: rnd.Uint64N(last+5) + 1}
	case k == 6 && rnd.IntN(4) == 0: // a snapshot was installed
		last += rnd.Uint64N(10)
	case k == 7 && rnd.IntN(2) == 0 && last > 0: // over what is there
		last = rnd.Uint64N(last)
	}
	var o op
	for range 1 + rnd.IntN(4) {
		last++
		e := &raft.Log{Index: last, Term: rnd.Uint64N(9), Type: raft.LogType(rnd.IntN(3)), AppendedAt: time.Unix(rnd.Int64N(1e9), rnd.Int64N(1e9))}
		e.Data = bytes.Repeat([]byte{byte(rnd.IntN(256)), byte(rnd.IntN(256)), 0}, rnd.IntN(longest/3+1))
		if rnd.IntN(5) == 0 {
			e.Extensions = []byte{byte(rnd.IntN(256))}
		}
		o.entries = append(o.entries, e)
	}
	return o
}
