package raftfsm

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"testing"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// nats-io/nats-server PR #8085: the key of a schedule was a slice of a buffer that was used again, so that after a recovery keys were
// garbage. Here the buffers of an entry and of a snapshot may be written over as soon as they were read.
func TestReportKeysAreCopied(t *testing.T) {
	t.Parallel()
	const n = 5000
	applied, want := newReplica(t, Options{}), []string{}
	buffer := []byte{}
	for i := range n / 50 {
		e := &logv1.Entry{Epoch: 1}
		for k := range 50 {
			id := fmt.Sprintf("%x/%d", (i*50+k)*7919, i%7)
			want = append(want, id)
			e.Commands = append(e.Commands, scheduleOf(&logv1.Schedule{
				Namespace: "default", Id: id, DueMs: 1, Queue: "q" + id, Payload: []byte("p" + id), RequestId: []byte("r" + id),
				Labels: []*logv1.Pair{{Key: "l", Value: id}},
			}))
		}
		buffer = EncodeEntry(e, buffer[:0])
		if _, err := applied.f.Apply(applied.next, buffer); err != nil {
			t.Fatal(err)
		}
		applied.next++
		scribble(buffer)
	}
	slices.Sort(want)
	restored := newReplica(t, Options{})
	if err := restored.f.Restore(scribbler{bytes.NewReader(snapshotBytes(t, applied.f))}); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]*FSM{"applied": applied.f, "restored": restored.f} {
		if got := pages(f, "", 1000); !slices.Equal(got, want) {
			t.Errorf("%s: %d timers are listed, want %d, or others", name, len(got), len(want))
		}
		for _, id := range want {
			st, found := f.Get("default", id)
			if r := st.Record; !found || r.ID != id || r.Queue != "q"+id || string(r.Payload) != "p"+id || r.Labels[0].Value != id {
				t.Fatalf("%s: %s is %+v", name, id, r)
			}
		}
		if err := f.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	applied.same(restored)
}

func scribble(b []byte) {
	for i := range b {
		b[i] = 0xEE
	}
}

// scribbler leaves nonsense in what it was given room for and did not fill.
type scribbler struct{ r io.Reader }

func (s scribbler) Read(b []byte) (int, error) {
	scribble(b)
	return s.r.Read(b[:min(len(b), 100)])
}

// a2aproject/a2a-js PR #661, floci-io/floci PR #3927 and get-convex/convex-test PR #45: a token whose item was gone gave an empty page,
// or the first one again. Here a list goes on behind its cursor, whatever became of the timer there, also in a restored replica.
func TestReportCursorOfAGoneTimer(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 7, 100} {
		r, want := newReplica(t, Options{MaxFinished: 3}), []string{}
		e := &logv1.Entry{Epoch: 1}
		for i := range 300 {
			id := fmt.Sprintf("t%03d", i)
			want, e.Commands = append(want, id), append(e.Commands, schedule(id, 1))
		}
		r.apply(e)
		var got []string
		for q := (ListQuery{Limit: size}); ; {
			page := r.f.List(q)
			got = append(got, ids(page)...)
			if !page.More {
				break
			}
			if len(got) > len(want) {
				t.Fatalf("pages of %d: the scan does not end", size)
			}
			q.After = got[len(got)-1]
			r.apply(&logv1.Entry{Epoch: 1, Commands: []*Command{cancel(q.After)}})
			if _, found := r.f.Get("default", q.After); !found && len(got) == size {
				t.Fatal("the story is broken: the first was forgotten already")
			}
			r = r.restored()
		}
		if !slices.Equal(got, want) {
			t.Errorf("pages of %d give %d timers, want %d", size, len(got), len(want))
		}
	}
}
