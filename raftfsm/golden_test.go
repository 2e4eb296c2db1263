package raftfsm

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

var update = flag.Bool("update", false, "write what the scripts in testdata give into them")

// A script is blocks divided by empty lines: a directive, command lines, "----", and what comes out. Directives:
//
//	new retention=MS finished=N requests=N   an empty replica
//	apply epoch=E clock=MS [begin=NODE] [atomic=1]  the commands as one entry, as they stand, or as one batch in it
//	stamp epoch=E now=MS                     the commands are made ready; they wait for propose or release
//	propose epoch=E                          what waits, as one entry
//	release                                  what waits will not be applied
//	lead epoch=E | follow
//	handout epoch=E [now=MS] ID...
//	get ID... | list [prefix=P] [after=ID] [limit=N] [a filter] [count=1] | letters | forecast | reigns ID | state
//	restart                                  the replica is replaced by one restored from its snapshot
type script struct {
	*replica
	waiting []*Command
	clock   int64
	out     strings.Builder
}

func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := &script{replica: newReplica(t, Options{Repeats: grid{}})}
	var blocks []string
	for _, block := range strings.Split(strings.TrimRight(string(text), "\n"), "\n\n") {
		input, want, runs := strings.Cut(block+"\n", "----\n")
		if !runs {
			blocks = append(blocks, block+"\n")
			continue
		}
		s.out.Reset()
		s.run(input)
		got := s.out.String()
		if got != want && !*update {
			t.Errorf("%s:\n%s---- got\n%s---- want\n%s", file, input, got, want)
		}
		blocks = append(blocks, input+"----\n"+got)
	}
	if *update {
		if err := os.WriteFile(file, []byte(strings.Join(blocks, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// words is a line: a verb, names, and key=value pairs; a name alone can be a flag too.
type words struct {
	t     *testing.T
	verb  string
	names []string
	value map[string]string
}

func parse(t *testing.T, line string) words {
	w := words{t: t, value: map[string]string{}}
	for i, word := range strings.Fields(line) {
		key, value, pair := strings.Cut(word, "=")
		switch {
		case i == 0:
			w.verb = word
		case pair:
			w.value[key] = value
		default:
			w.names = append(w.names, word)
		}
	}
	return w
}

func (w words) number(key string) int64 {
	text, ok := w.value[key]
	if !ok {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		w.t.Fatalf("%s: %v", key, err)
	}
	return n
}

func (w words) has(key string) bool { _, ok := w.value[key]; return ok }

func (s *script) run(input string) {
	lines := strings.Split(strings.TrimSpace(input), "\n")
	for strings.HasPrefix(lines[0], "#") {
		lines = lines[1:]
	}
	w := parse(s.t, lines[0])
	var cmds []*Command
	for _, line := range lines[1:] {
		cmds = append(cmds, parse(s.t, line).command())
	}
	if w.has("atomic") {
		cmds = []*Command{{Kind: &logv1.Command_Atomic{Atomic: &logv1.Atomic{Commands: cmds}}}}
	}
	epoch := uint64(w.number("epoch"))
	switch w.verb {
	case "new":
		s.replica = newReplica(s.t, Options{
			Retention: w.number("retention"), MaxFinished: int(w.number("finished")), MaxRequests: int(w.number("requests")),
			Repeats: grid{},
		})
	case "apply":
		e := &logv1.Entry{Epoch: epoch, ClockMs: w.number("clock"), Commands: cmds}
		if w.has("begin") {
			e.Begin = &logv1.Begin{Node: w.value["begin"]}
		}
		s.entry(e)
	case "stamp":
		s.stamp(epoch, w.number("now"), cmds)
	case "propose":
		s.entry(&logv1.Entry{Epoch: epoch, ClockMs: s.clock, Commands: s.waiting})
		s.waiting = nil
	case "release":
		s.f.ReleaseHolds(s.waiting)
		s.waiting = nil
	case "lead":
		s.f.Lead(epoch)
	case "follow":
		s.f.Follow()
	case "handout":
		for _, id := range w.names {
			now := s.f.Stats().Clock
			if w.has("now") {
				now = w.number("now")
			}
			verdict := s.f.HandOut(epoch, now, []Ref{s.describe(id).Ref}, nil)[0].Verdict
			s.line("%s %s", id, [...]string{"refused", "handed out", "expired", "missed", "ahead"}[verdict])
		}
	case "restart":
		s.replica = s.restored()
	default:
		s.read(w)
	}
	s.ops()
	s.checkState()
}

func (s *script) read(w words) {
	switch w.verb {
	case "get":
		for _, id := range w.names {
			s.status(id)
		}
	case "list":
		page := s.f.List(s.query(w))
		s.line("%s more=%v", strings.Join(ids(page), " "), page.More)
		if page.Last != "" {
			s.line("last=%s", page.Last)
		}
		if w.has("count") {
			s.line("count=%d", page.Count)
		}
	case "letters":
		for _, t := range s.f.List(ListQuery{Namespace: w.value["ns"], Dead: true}).Timers {
			s.line("%s", statusText(t))
		}
	case "forecast":
		rows, err := s.f.Forecast(ForecastQuery{
			Namespace: w.value["ns"], Queue: w.value["queue"], From: w.number("from"), Step: w.number("step"), Steps: int(w.number("steps")),
		})
		if err != nil {
			s.t.Fatal(err)
		}
		for _, r := range rows {
			s.line("%s/%s before=%d %v after=%d paused=%d", r.Namespace, r.Queue, r.Before, r.Counts, r.After, r.Paused)
		}
	case "reigns":
		st, _ := s.f.Get("default", w.names[0])
		s.line("%v", st.Reigns)
	case "state":
		s.state()
	default:
		s.t.Fatalf("no directive %q", w.verb)
	}
}

func (s *script) query(w words) ListQuery {
	q := ListQuery{
		Namespace: w.value["ns"], Prefix: w.value["prefix"], After: w.value["after"], Limit: int(w.number("limit")),
		Look: int(w.number("look")), Count: w.has("count"),
	}
	f := &logv1.Filter{
		Queue: w.value["queue"], HasFrom: w.has("from"), FromMs: w.number("from"), HasBefore: w.has("before"), BeforeMs: w.number("before"),
	}
	if w.has("label") {
		key, value, _ := strings.Cut(w.value["label"], ":")
		f.Labels = []*logv1.Pair{{Key: key, Value: value}}
	}
	for name := range strings.SplitSeq(w.value["state"], ",") {
		for s := Pending; s <= Expired; s++ {
			if s.String() == name {
				f.States = append(f.States, uint32(s))
			}
		}
	}
	if f.SizeVT() > 0 {
		q.Filter = f
	}
	return q
}

func (s *script) line(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }

func (s *script) entry(e *logv1.Entry) {
	a := s.apply(e)
	for i, r := range a.Results {
		s.line("%s: %s", nameOf(e.Commands[i]), resultText(r))
	}
	if a.Stale {
		s.line("stale")
	}
}

func (s *script) stamp(epoch uint64, now int64, cmds []*Command) {
	clock, rejected := s.f.Stamp(epoch, now, cmds)
	s.line("clock %d", clock)
	s.clock = clock
	for i, c := range cmds {
		if rejected[i] != nil {
			s.line("%s: rejected %s", nameOf(c), resultText(*rejected[i]))
			continue
		}
		s.waiting = append(s.waiting, c)
		switch k := c.Kind.(type) {
		case *logv1.Command_Schedule:
			s.line("%s: due=%d", nameOf(c), k.Schedule.DueMs)
		case *logv1.Command_Reschedule:
			s.line("%s: due=%d", nameOf(c), k.Reschedule.DueMs)
		case *logv1.Command_Cancel:
			s.line("%s: firing=%v", nameOf(c), k.Cancel.Firing)
		case *logv1.Command_Complete:
			s.line("%s: held%s", nameOf(c), nextText(k.Complete.Next))
		case *logv1.Command_Retry:
			s.line("%s: held%s", nameOf(c), nextText(k.Retry.Next))
			if k.Retry.HasDelay {
				s.line("%s: due=%d", nameOf(c), k.Retry.DueMs)
			}
		case *logv1.Command_Pause:
			s.line("%s: firing=%v", nameOf(c), k.Pause.Firing)
		case *logv1.Command_Resume:
			s.line("%s:%s", nameOf(c), nextText(k.Resume.Next))
		case *logv1.Command_Advance:
			s.line("%s: held%s spawn=%v", nameOf(c), nextText(k.Advance.Next), k.Advance.SpawnMs)
		}
	}
}

func nextText(n *logv1.Next) string {
	switch {
	case n == nil:
		return ""
	case n.Ended:
		return " ended"
	}
	return fmt.Sprintf(" tick=%d due=%d backlog=%d", n.TickMs, n.DueMs, n.BacklogMs)
}

// ops writes the ops by the names of the timers where they are known, since slots mean nothing.
func (s *script) ops() {
	for _, op := range s.feed.take() {
		switch op.Kind {
		case Arm:
			s.line("  arm %d @%d", op.Slot, op.When)
		case Disarm:
			s.line("  disarm %d", op.Slot)
		case Reset:
			s.line("  reset")
		}
	}
}

func (s *script) status(id string) {
	st, ok := s.f.Get("default", id)
	if !ok {
		s.line("%s not found", id)
		return
	}
	s.line("%s", statusText(st))
}

func (s *script) state() {
	st := s.f.Stats()
	s.line("index=%d epoch=%d clock=%d epoch_clock=%d pending=%d finished=%d requests=%d payload=%d", st.AppliedIndex,
		st.Epoch, st.Clock, st.EpochClock, st.Pending, st.Finished, st.Requests, st.PayloadBytes)
	for _, t := range s.f.List(ListQuery{}).Timers {
		s.line("%s", statusText(t))
	}
}
