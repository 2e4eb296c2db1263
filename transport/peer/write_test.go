package peer

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/carillon-timers/carillon/transport/peer/peertest"
)

// One goroutine at a time has the turn to write: who finds nobody writing has it, for a small message, and the writer for a
// large one or for what is left.
func TestOutboxTurns(t *testing.T) {
	t.Parallel()
	o := newOutbox(8, 1<<20)
	o.direct = true
	push := func(size int, want bool) {
		t.Helper()
		if mine, err := o.push(&message{typ: typeCall, payload: make([]byte, size)}, lane{}); err != nil || mine != want {
			t.Errorf("%d bytes: the turn is the sender's: %v, %v", size, mine, err)
		}
	}
	woken := func() bool {
		select {
		case <-o.wake:
			return true
		default:
			return false
		}
	}
	push(10, true)
	push(10, false)
	frames(o)
	if o.pass(false); woken() {
		t.Error("the writer was woken for nothing")
	}
	push(10, true)
	frames(o)
	push(10, false)
	if o.pass(false); !woken() {
		t.Error("something is queued, and nobody was woken")
	}
	push(10, false)
	if o.rest() {
		t.Error("the writer rests while something is queued")
	}
	frames(o)
	if !o.rest() {
		t.Error("the writer does not rest")
	}
	push(10, true)
	frames(o)
	if o.pass(true); !woken() {
		t.Error("something is left, and nobody was woken")
	}
	if !o.rest() {
		t.Error("the writer does not rest")
	}
	if push(directBytes+1, false); !woken() {
		t.Error("a large message did not wake the writer")
	}
	frames(o)
	if !o.rest() {
		t.Error("the writer does not rest")
	}
	if mine, err := o.push(&message{typ: typeCall, soon: true}, lane{}); mine || err != nil || !woken() {
		t.Errorf("a message that others follow did not wake the writer: %v", err)
	}
}

// Senders do not wait for a node that reads nothing, and when it reads again all arrives whole and in order.
func TestSendersDoNotWaitForTheSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		a, b := two(t, n, func(c *Config) { c.PipelineDepth = 128 })
		defer b.stop()
		defer a.stop()
		var got []uint64
		defer serve(b.m.Group(1), func(rpc raft.RPC) {
			got = append(got, rpc.Command.(*raft.AppendEntriesRequest).Entries[0].Index)
			ok(rpc)
		})()
		p := openPipeline(t, a)
		defer func() { _ = p.Close() }()
		n.Freeze("b")
		start := time.Now()
		const count = 100 // of 10 kB: four times what the network holds
		for i := uint64(1); i <= count; i++ {
			if _, err := p.AppendEntries(entries(i, 10_000), new(raft.AppendEntriesResponse)); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("the sender waited for %v", took)
		}
		time.Sleep(time.Second)
		n.Thaw("b")
		for i := uint64(1); i <= count; i++ {
			if f := <-p.Consumer(); f.Error() != nil || f.Response().LastLog != i {
				t.Fatalf("request %d: %+v, %v", i, f.Response(), f.Error())
			}
		}
		synctest.Wait()
		for i, index := range got {
			if index != uint64(i+1) {
				t.Fatalf("arrived in the order %v", got)
			}
		}
		// A write that waited has left no deadline behind.
		time.Sleep(10 * time.Second)
		echo(t, a, "b")
		if s := a.m.Stats(); s.Lost != 0 || s.QueuedMessages != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

// Many send at once over one connection while it is slow and full, small and large: everything is answered.
func TestManySendersShareTheTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		n.Delay("a", "b", time.Millisecond)
		a, b := two(t, n, nil)
		defer b.stop()
		defer a.stop()
		var wg sync.WaitGroup
		for w := range 16 {
			wg.Go(func() {
				for i := range 30 {
					body := bytes.Repeat([]byte{byte(w), byte(i)}, 1+(w*i*97)%60_000)
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					got, err := a.m.Call(ctx, "b", methodEcho, uint32(w), body)
					cancel()
					if err != nil || !bytes.Equal(got[2:], body) {
						t.Errorf("call %d of %d: %d bytes, %v", i, w, len(got), err)
					}
				}
			})
		}
		wg.Wait()
	})
}
