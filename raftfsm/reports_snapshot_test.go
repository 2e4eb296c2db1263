package raftfsm

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// applyingWriter calls apply in each write.
type applyingWriter struct {
	bytes.Buffer
	apply func()
}

func (w *applyingWriter) Write(b []byte) (int, error) {
	w.apply()
	return w.Buffer.Write(b)
}

// A snapshot was written under the lock of the state, so nothing was applied meanwhile and heartbeats timed out
// (databendlabs/databend #10873, hashicorp/consul #9623). Entries are applied between any two pieces, and are not in it.
func TestApplyGoesOnWhileASnapshotIsWritten(t *testing.T) {
	t.Parallel()
	r := newReplica(t, Options{})
	for i := range 2000 {
		c := schedule(fmt.Sprint(i), int64(i)).GetSchedule()
		c.Payload = bytes.Repeat([]byte{byte(i)}, 1000)
		if _, err := r.f.Apply(r.next, EncodeEntry(&logv1.Entry{Epoch: 1, Commands: []*Command{scheduleOf(c)}}, nil)); err != nil {
			t.Fatal(err)
		}
		r.next++
	}
	before := r.f.Hash()
	snapshot, err := r.f.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snapshot.Release()
	applied := 0
	w := &applyingWriter{apply: func() {
		done := make(chan error, 1)
		entry := &logv1.Entry{Epoch: 1, Commands: []*Command{cancel(fmt.Sprint(1999 - applied)), schedule(fmt.Sprint("n", applied), 1)}}
		go func() {
			_, err := r.f.Apply(r.next, EncodeEntry(entry, nil))
			done <- err
		}()
		limit := time.NewTimer(20 * time.Second)
		defer limit.Stop()
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		case <-limit.C:
			t.Fatal("an entry waits for the snapshot")
		}
		r.next++
		applied++
	}}
	if _, err := snapshot.WriteTo(w); err != nil {
		t.Fatal(err)
	}
	if applied < 3 {
		t.Fatalf("the story is broken: it was written in %d pieces", applied)
	}
	then := New(Options{})
	if err := then.Restore(&w.Buffer); err != nil || then.Hash() != before {
		t.Errorf("the snapshot is not of the state when it was taken: %v", err)
	}
	r.check()
}
