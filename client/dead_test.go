package client_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-timers/carillon/client"
	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// bury gives the cluster so many dead letters.
func (c *cluster) bury(n int) []string {
	keys := ids("k", n)
	c.hook(func(c *cluster) {
		c.letters, c.stuck = nil, make(map[string]bool)
		for _, key := range keys {
			c.letters = append(c.letters, &carillonv1.DeadLetter{
				Key: key, Reason: carillonv1.DeadReason_DEAD_REASON_REFUSED, LastError: "no", Attempts: 3, Died: timestamppb.Now(), Shard: 1,
				Timer: &carillonv1.Timer{Namespace: "default", Id: "id-" + key, Target: &carillonv1.Timer_Queue{Queue: "q"}, Payload: []byte("p")},
			})
		}
	})
	return keys
}

func TestDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, "n1")
		cl := c.client(t)
		keys := c.bury(25)
		var got []string
		for l, err := range cl.DeadLetters(t.Context(), client.DeadQuery{Queue: "q", Limit: 10}) {
			if err != nil || l.Timer.ID != "id-"+l.Key || l.Timer.Queue != "q" || l.Reason != client.DeadRefused || l.Reason.String() != "refused" ||
				l.LastError != "no" || l.Attempts != 3 || !l.Died.Equal(time.Now()) || l.Namespace != "default" {
				t.Fatalf("%+v, %v", l, err)
			}
			got = append(got, l.Key)
		}
		if strings.Join(got, " ") != strings.Join(keys, " ") || len(c.took()) != 3 {
			t.Errorf("got %v", got)
		}
		var invalid *client.InvalidError
		if _, err := cl.DeadLetterPage(t.Context(), client.DeadQuery{Limit: 1001}); !errors.As(err, &invalid) {
			t.Errorf("a limit over 1,000: %v", err)
		}
	})
}

// Any number of keys takes as many calls as it needs, each with a request ID of its own, the same for the same first one.
func TestRedriveKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, "n1")
		cl := c.client(t)
		var before string
		for range 2 {
			keys := c.bury(2500)
			c.hook(func(c *cluster) { c.stuck[keys[1]] = true })
			n, err := cl.Redrive(t.Context(), client.Letters{Keys: append(keys, "unknown"), RequestID: "r"})
			var failed *client.LettersError
			if n != 2499 || !errors.As(err, &failed) || failed.Done != 2499 || len(failed.Failed) != 2 || failed.Failed[1].Key != "unknown" ||
				!errors.Is(err, client.ErrAlreadyExists) || !errors.Is(failed.Failed[1].Err, client.ErrNotFound) || failed.Failed[1].Err.Error() != "no such dead letter" {
				t.Fatalf("%d, %v", n, err)
			}
			path := c.took()
			if len(path) != 3 || path[0].requestID != "r" || path[1].requestID == path[2].requestID || path[2].id != "501" {
				t.Fatalf("%+v", path)
			}
			if before != "" && before != path[2].requestID {
				t.Error("the same request ID led to another one")
			}
			before = path[2].requestID
		}
	})
}

// All means all, 1,000 a call; letters that cannot be redriven do not keep the call for ever.
func TestRedriveAndPurgeAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, "n1")
		cl := c.client(t)
		c.bury(2500)
		if n, err := cl.Redrive(t.Context(), client.Letters{All: true, Queue: "q"}); n != 2500 || err != nil || len(c.took()) != 3 {
			t.Errorf("redrive: %d, %v", n, err)
		}
		keys := c.bury(1200)
		c.hook(func(c *cluster) {
			for _, key := range keys[:1100] {
				c.stuck[key] = true
			}
		})
		n, err := cl.Redrive(t.Context(), client.Letters{All: true})
		var failed *client.LettersError
		if n != 0 || !errors.As(err, &failed) || len(failed.Failed) != 1000 {
			t.Errorf("stuck: %d, %v", n, err)
		}
		c.bury(1001)
		if n, err := cl.Purge(t.Context(), client.Letters{All: true}); n != 1001 || err != nil {
			t.Errorf("purge: %d, %v", n, err)
		}
		if n, err := cl.Purge(t.Context(), client.Letters{All: true}); n != 0 || err != nil {
			t.Errorf("purge of none: %d, %v", n, err)
		}
		var invalid *client.InvalidError
		for _, l := range []client.Letters{{}, {All: true, Keys: keys}, {Keys: keys, Queue: "q"}, {Keys: []string{""}}} {
			if _, err := cl.Purge(t.Context(), l); !errors.As(err, &invalid) {
				t.Errorf("%d keys, all %v: %v", len(l.Keys), l.All, err)
			}
		}
	})
}
