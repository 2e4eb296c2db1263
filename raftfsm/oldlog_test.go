package raftfsm

import (
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"
)

// The log is readable for ever: these entries were written by the version before there were repeats, and give what they gave then.
func TestFirstEntries(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/first.entries")
	if err != nil {
		t.Fatal(err)
	}
	r := newReplica(t, Options{})
	var got strings.Builder
	for _, line := range strings.Fields(string(text)) {
		b, err := hex.DecodeString(line)
		if err != nil {
			t.Fatal(err)
		}
		a, err := r.f.Apply(r.next, b)
		if err != nil {
			t.Fatal(err)
		}
		r.next++
		r.check()
		for _, x := range a.Results {
			fmt.Fprintln(&got, x.Code, x.Revision, x.Due, x.Answer)
		}
	}
	const want = "0 2 2000 0\n0 2 1500 0\n0 2 1600 0\n0 2 1700 0\n2 2 0 0\n" +
		"0 3 3000 0\n0 3 2500 0\n0 3 0 2\n1 0 0 0\n" + "0 4 0 0\n4 3 0 0\n"
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
	pay, _ := r.f.Get("shop", "{order-1}/pay")
	if p := pay.Record; string(p.Payload) != "hello" || p.Headers[0] != (Pair{"h", "1"}) || p.Labels[0] != (Pair{"l", "2"}) || p.Retry != (RetryPolicy{5000, 10, 100, 1.5, 0}) || p.Extra != nil {
		t.Errorf("got %+v", p)
	}
	r.same(r.restored())
}
