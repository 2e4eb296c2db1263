package transport

import (
	"fmt"
	"strings"
	"testing"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

// explainCases are lives of timers: what the shard has kept, and the story that Explain makes of it. Times are in
// milliseconds; the reigns of n1 and n2 began at 0 and at 5,000.
var explainCases = []struct {
	name   string
	status raftfsm.Status
	now    int64
	want   []string
}{
	{"waiting", raftfsm.Status{State: raftfsm.Pending, Record: &raftfsm.Record{Created: 100, Due: 9000, NextDue: 9000}}, 200, []string{
		"100 accepted n1/3: ",
	}},
	{"acked on time", raftfsm.Status{State: raftfsm.Fired, FinishedAt: 1030, HandedAt: 1001, HandedEpoch: 3, Record: &raftfsm.Record{Created: 100, Due: 1000}}, 9999, []string{
		"100 accepted n1/3: ", "1000 due n1/3: ", "1001 handed-out n1/3: attempt 1", "1030 acked n1/3: ",
	}},
	{"late because of a failover", raftfsm.Status{State: raftfsm.Fired, FinishedAt: 5200, HandedAt: 5001, HandedEpoch: 4, Record: &raftfsm.Record{Created: 100, Due: 4000}}, 9999, []string{
		"100 accepted n1/3: ", "4000 due n1/3: ", "5000 leader n2/4: leads the shard from here on",
		"5001 handed-out n2/4: attempt 1, 1.001s late: no leader fired it before the reign of n2 began, 1s after the due time", "5200 acked n2/4: ",
	}},
	{"a busy leader", raftfsm.Status{State: raftfsm.Firing, HandedAt: 1200, HandedEpoch: 3, Record: &raftfsm.Record{Created: 100, Due: 1000, NextDue: 1000}}, 1300, []string{
		"100 accepted n1/3: ", "1000 due n1/3: ", "1200 handed-out n1/3: attempt 1, 200ms late: the leader was busy, no consumer had credit, or it was paused",
	}},
	{"nobody takes it", raftfsm.Status{State: raftfsm.Pending, Record: &raftfsm.Record{Created: 100, Due: 1000, NextDue: 1000}}, 4000, []string{
		"100 accepted n1/3: ", "1000 due n1/3: not handed out yet, 3s late: no consumer took it, or it was paused",
	}},
	{"failed, lapsed, and out again", raftfsm.Status{State: raftfsm.Firing, HandedAt: 4000, HandedEpoch: 3, Record: &raftfsm.Record{
		Created: 100, Due: 1000, NextDue: 4000, Attempt: 2, Extra: &logv1.Extra{Failures: []*logv1.Failure{
			{AtMs: 1100, HandedMs: 1000, Epoch: 3, Error: "no"}, {AtMs: 3000, HandedMs: 2000, Epoch: 3, Lapsed: true}}}}}, 4001, []string{
		"100 accepted n1/3: ", "1000 due n1/3: ", "1000 handed-out n1/3: attempt 1", "1100 failed n1/3: attempt 1: no",
		"2000 handed-out n1/3: attempt 2, 1s after the due time because 1 attempt failed", "3000 lapsed n1/3: attempt 2: there was no answer before the lease ended", "4000 handed-out n1/3: attempt 3, 3s after the due time because 2 attempts failed",
	}},
	{"waiting for the next attempt", raftfsm.Status{State: raftfsm.Pending, Record: &raftfsm.Record{
		Created: 100, Due: 1000, NextDue: 60_000, Attempt: 1, Extra: &logv1.Extra{Failures: []*logv1.Failure{{AtMs: 1100, Epoch: 9, Error: "no"}}}}}, 1200, []string{
		"100 accepted n1/3: ", "1000 due n1/3: ", "1100 failed /9: attempt 1: no; the next attempt may start at 1970-01-01T00:01:00Z",
	}},
	{"frozen", raftfsm.Status{State: raftfsm.Paused, Record: &raftfsm.Record{Created: 100, Due: 1000, Extra: &logv1.Extra{Paused: true, PausedMs: 300, Frozen: true, LeftMs: 700}}}, 2000, []string{
		"100 accepted n1/3: ", "300 paused n1/3: 700ms were left",
	}},
	{"expired", raftfsm.Status{State: raftfsm.Expired, FinishedAt: 3000, Record: &raftfsm.Record{Created: 100, Due: 1000}}, 9999, []string{
		"100 accepted n1/3: ", "1000 due n1/3: ", "3000 expired n1/3: no consumer took it in time, or it was paused",
	}},
	{"dead, and its letter gone", raftfsm.Status{State: raftfsm.Dead, FinishedAt: 3000, HandedAt: 2000, HandedEpoch: 3, Record: &raftfsm.Record{Created: 100, Due: 1000, Attempt: 2}}, 9999, []string{
		"100 accepted n1/3: ", "1000 due n1/3: ", "2000 handed-out n1/3: attempt 2, 1s after the due time because 1 attempt failed", "3000 dead n1/3: ",
	}},
	{"dead, with its letter", raftfsm.Status{State: raftfsm.Dead, FinishedAt: 3000, HandedAt: 1000, HandedEpoch: 3, Record: &raftfsm.Record{
		Created: 100, Due: 1000, Attempt: 1, Extra: &logv1.Extra{Failures: []*logv1.Failure{{AtMs: 3000, HandedMs: 1000, Epoch: 3, Error: "no"}}}}}, 9999, []string{
		"100 accepted n1/3: ", "1000 due n1/3: ", "1000 handed-out n1/3: attempt 1", "3000 failed n1/3: attempt 1: no", "3000 dead n1/3: ",
	}},
	{"cancelled before it was due", raftfsm.Status{State: raftfsm.Cancelled, FinishedAt: 300, Record: &raftfsm.Record{Created: 100, Due: 1000}}, 9999, []string{
		"100 accepted n1/3: ", "300 cancelled n1/3: ",
	}},
	{"a repeat in its window", raftfsm.Status{State: raftfsm.Firing, HandedAt: 3000, HandedEpoch: 3, Record: &raftfsm.Record{
		Created: 100, Due: 3000, NextDue: 3000, Extra: &logv1.Extra{WindowMs: 5000, Repeat: &logv1.Repeat{TickMs: 1000, Fired: 7}}}}, 3001, []string{
		"100 accepted n1/3: ", "3000 due n1/3: 7 due times of the repeat were fired before; 2s into its window", "3000 handed-out n1/3: attempt 1",
	}},
	{"in the past", raftfsm.Status{State: raftfsm.Pending, Record: &raftfsm.Record{Created: 1000, Due: -500, NextDue: -500}}, 1001, []string{
		"-500 due /0: ", "1000 accepted n1/3: 1.5s after its due time",
	}},
}

func TestExplain(t *testing.T) {
	t.Parallel()
	for _, c := range explainCases {
		c.status.Reigns = []raftfsm.Reign{{Epoch: 3, Node: "n1", Begun: 0}, {Epoch: 4, Node: "n2", Begun: 5000}}
		var got []string
		for _, e := range explain(c.status, c.now) {
			got = append(got, fmt.Sprintf("%d %s %s/%d: %s", e.At.AsTime().UnixMilli(), e.Kind, e.Node, e.Epoch, e.Text))
		}
		if g, w := strings.Join(got, "\n"), strings.Join(c.want, "\n"); g != w {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, g, w)
		}
	}
}

// Explain asks for the timer as Get does.
func TestExplainCall(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{onGet: func(id string) (raftfsm.Status, error) {
		return raftfsm.Status{State: raftfsm.Pending, Record: &raftfsm.Record{Namespace: "default", ID: id, Queue: "q", Created: 1, Due: 1 << 43, NextDue: 1 << 43}}, nil
	}}
	h := serve(t, testConfig(), backend)
	resp, err := h.timers.Explain(t.Context(), &carillonv1.ExplainRequest{Id: "x"})
	if err != nil || resp.Timer.Timer.Id != "x" || len(resp.Events) != 1 || resp.Events[0].Kind != "accepted" {
		t.Errorf("got %v, %v", resp, err)
	}
}
