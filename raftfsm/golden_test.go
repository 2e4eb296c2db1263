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
//	apply epoch=E clock=MS [begin=NODE]      the commands as one entry, as they stand
//	stamp epoch=E now=MS                     the commands are made ready; they wait for propose or release
//	propose epoch=E                          what waits, as one entry
//	release                                  what waits will not be applied
//	lead epoch=E | follow
//	handout epoch=E ID...
//	get ID... | list [prefix=P] [after=ID] [limit=N] | state
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
	s := &script{replica: newReplica(t, Options{})}
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
	epoch := uint64(w.number("epoch"))
	switch w.verb {
	case "new":
		s.replica = newReplica(s.t, Options{
			Retention: w.number("retention"), MaxFinished: int(w.number("finished")), MaxRequests: int(w.number("requests")),
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
			s.line("%s %s", id, map[bool]string{true: "handed out", false: "refused"}[s.handOut(epoch, id)])
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
		page := s.f.List(ListQuery{Namespace: w.value["ns"], Prefix: w.value["prefix"], After: w.value["after"], Limit: int(w.number("limit"))})
		s.line("%s more=%v", strings.Join(ids(page), " "), page.More)
	case "state":
		s.state()
	default:
		s.t.Fatalf("no directive %q", w.verb)
	}
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
			s.line("%s: held", nameOf(c))
		case *logv1.Command_Retry:
			s.line("%s: held", nameOf(c))
			if k.Retry.HasDelay {
				s.line("%s: due=%d", nameOf(c), k.Retry.DueMs)
			}
		}
	}
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
