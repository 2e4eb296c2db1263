package client_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-timers/carillon/client"
)

func TestOneTimersLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, "n1", "n2", "n3")
		cl := c.client(t)
		s, err := cl.Schedule(t.Context(), client.Timer{ID: "a", After: time.Minute, Queue: "q", Payload: []byte("x")})
		if err != nil || s.Revision == 0 || s.RequestID == "" {
			t.Fatalf("Schedule: %+v, %v", s, err)
		}
		got, err := cl.Get(t.Context(), "a")
		if err != nil || got.State != client.Pending || !got.Due.Equal(s.Due) || string(got.Payload) != "x" || got.Queue != "q" {
			t.Fatalf("Get: %+v, %v", got, err)
		}
		if _, err := cl.Schedule(t.Context(), client.Timer{ID: "a", Queue: "q"}); !errors.Is(err, client.ErrAlreadyExists) {
			t.Fatalf("second Schedule: %v", err)
		}
		moved, err := cl.Reschedule(t.Context(), "a", client.Move{After: time.Hour})
		if err != nil || moved.Due.Sub(s.Due) != 59*time.Minute {
			t.Fatalf("Reschedule: %+v, %v", moved, err)
		}
		if ok, err := cl.Cancel(t.Context(), "a"); !ok || err != nil {
			t.Fatalf("Cancel: %v, %v", ok, err)
		}
		if ok, err := cl.Cancel(t.Context(), "unknown"); ok || !errors.Is(err, client.ErrNotFound) {
			t.Fatalf("Cancel of an unknown timer: %v, %v", ok, err)
		}
		if _, err := cl.Get(t.Context(), "unknown"); !errors.Is(err, client.ErrNotFound) {
			t.Fatalf("Get of an unknown timer: %v", err)
		}
	})
}
