package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/carillon-timers/carillon/client"
	"github.com/carillon-timers/carillon/node"
)

// result is what a command line came to.
type result struct {
	code      int
	out, errs string
}

func (r result) String() string { return fmt.Sprintf("exit code %d\n%s%s", r.code, r.out, r.errs) }

// carillon runs a command line.
func carillon(t *testing.T, in string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out, errs bytes.Buffer
	code := run(ctx, args, strings.NewReader(in), &out, &errs)
	return result{code, out.String(), errs.String()}
}

// startNode starts a cluster of one node and makes it the default address.
func startNode(t *testing.T) {
	t.Helper()
	c := node.DefaultConfig()
	c.ID, c.Dir, c.BootstrapExpect, c.Shards = "n1", t.TempDir(), 1, 4
	c.ClientAddr, c.PeerAddr, c.GossipAddr, c.HTTPAddr = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	c.Webhooks.Allow = loopback
	n, err := node.New(c, node.Deps{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("node: %v", err)
		}
	})
	select {
	case <-n.Ready():
	case err := <-done:
		done <- nil
		t.Fatalf("node: %v", err)
	case <-time.After(20 * time.Second):
		t.Fatal("the node is not ready")
	}
	t.Setenv("CARILLON_ADDR", n.Addrs().Client)
}

// The commands against a real node: what is printed, and the exit codes.
func TestClientCommands(t *testing.T) {
	startNode(t)
	file := filepath.Join(t.TempDir(), "payload")
	if err := os.WriteFile(file, []byte{0xff, 0}, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args string
		in   string
		code int
		out  []string
		errs string
	}{
		{args: "schedule a --in 1h --queue q --data hi --label k=v --header h=w", out: []string{"id        a\n", "revision"}},
		{args: "get a", out: []string{"state            pending\n", "payload          hi\n", "labels           k=v\n", "headers          h=w\n"}},
		{args: "schedule a --in 1h --queue q", code: 1, errs: `carillon: schedule "a": timer already exists`},
		{args: "schedule a --in 1h --queue q --if-exists keep", out: []string{"kept      yes"}},
		{args: "schedule a --in 2d --queue q --if-exists replace --data -", in: "from stdin", out: []string{"(in "}},
		{args: "schedule b --in 1h --queue q --data @" + file, out: []string{"id        b\n"}},
		{args: "get b -o json", out: []string{`"payload_base64":"/wA="`, `"state":"pending"`}},
		{args: "get a", out: []string{"payload          from stdin\n"}},
		{args: "list", out: []string{"ID  STATE    REPEAT  DUE", "\na   pending  -       ", "\nb   pending  "}},
		{args: "list --prefix b -o json", out: []string{`[{"namespace":"default","id":"b"`}},
		{args: "list --limit 1", out: []string{"\na "}, errs: "carillon: there are more than 1; --limit or --all shows them"},
		{args: "list --prefix none -o json", out: []string{"[]\n"}},
		{args: "reschedule a --at 2100-01-02T03:04:05Z", out: []string{"due       2100-01-02T03:04:05.000Z"}},
		{args: "reschedule none --in 1s", code: 3, errs: `carillon: reschedule "none": timer not found`},
		{args: "cancel a", out: []string{"outcome   cancelled: no delivery starts any more"}},
		{args: "cancel b --expected-revision 1", code: 1, errs: `carillon: cancel "b": expected revision 1 does not match the timer's revision`},
		{args: "cancel b -o json", out: []string{`"outcome":"cancelled"`}},
		{args: "cancel none", code: 3, errs: `carillon: cancel "none": timer not found`},
		{args: "get none", code: 3, errs: `carillon: get "none": timer not found`},
		{args: "get a --namespace other", code: 3},
		{args: "get a --namespace Other", code: 2, errs: "namespace"},
		{args: "schedule x --at 9999-12-31T23:59:59Z --queue q", code: 2, errs: "100 years"},
		{args: "schedule x --in 1h --queue q --lease 1ms", code: 2, errs: "lease"},
		{args: "schedule x --in 1h --queue q --data -", in: strings.Repeat("x", 65<<10), code: 2, errs: "at most 65536 bytes"},
		{args: "schedule x --in 1h --queue q --data -", in: strings.Repeat("x", 600<<10), code: 2, errs: "payload"},
		{args: "cluster status", out: []string{"ready                 yes\n", "shards with a leader  4 of 4\n", "asked node            n1\n"}},
		{args: "cluster status -o json", out: []string{`"ready":true`, `"shards":4`}},
		{args: "cluster members", out: []string{"ID  ALIVE  LEADS  REPLICAS", "n1  yes    4      4"}},
		{args: "cluster members -o json", out: []string{`[{"id":"n1","alive":true`}},
		{args: "cluster shards", out: []string{"SHARD  LEADER  FIRING", "3      n1      yes"}},
		{args: "cluster shards -o json", out: []string{`[{"id":0,"leader":"n1","firing":true`}},
	} {
		args := strings.Fields(test.args)
		r := carillon(t, test.in, args...)
		if r.code != test.code || !strings.Contains(r.errs, test.errs) || (test.errs == "" && test.code == 0 && r.errs != "") {
			t.Errorf("carillon %s: want exit code %d and %q: %v", test.args, test.code, test.errs, r)
		}
		for _, want := range test.out {
			if !strings.Contains(r.out, want) {
				t.Errorf("carillon %s: %q is missing: %v", test.args, want, r)
			}
		}
		if strings.Count(r.errs, "\n") > 1 {
			t.Errorf("carillon %s: more than a line: %v", test.args, r)
		}
	}
	t.Run("preview", testPreview)
	t.Run("preview examples", testPreviewExamples)
	t.Run("work", testWork)
}

// A worker prints, or runs a command whose exit code answers.
func testWork(t *testing.T) {
	if r := carillon(t, "", "schedule", "w/1", "--in", "0s", "--queue", "work", "--data", "hello", "--header", "n=1"); r.code != 0 {
		t.Fatal(r)
	}
	r := carillon(t, "", "work", "work", "--count", "1")
	var line struct {
		ID, Payload string
		Lateness    *float64 `json:"lateness_ms"`
		Attempt     int
	}
	if err := json.Unmarshal([]byte(r.out), &line); err != nil || r.code != 0 || strings.Count(r.out, "\n") != 1 {
		t.Fatalf("%v: %v", err, r)
	}
	if line.ID != "w/1" || line.Payload != "hello" || line.Lateness == nil || *line.Lateness < 0 || line.Attempt != 1 {
		t.Errorf("printed: %s", r.out)
	}
	if r := carillon(t, "", "get", "w/1"); !strings.Contains(r.out, "fired") {
		t.Errorf("after the ack: %v", r)
	}
	if r := carillon(t, "", "cancel", "w/1"); r.code != 1 || !strings.Contains(r.out, "fired") || r.errs != "" {
		t.Errorf("cancel of a fired timer: %v", r)
	}

	if r := carillon(t, "", "schedule", "w/2", "--in", "0s", "--queue", "command", "--data", "in", "--label", "a-b=c"); r.code != 0 {
		t.Fatal(r)
	}
	script := `if [ $CARILLON_ATTEMPT = 1 ]; then echo "no luck" >&2; exit 3; fi; echo "$CARILLON_ID $CARILLON_LABEL_A_B $(cat)"`
	r = carillon(t, "", "work", "command", "--count", "2", "--", "sh", "-c", script)
	if r.code != 0 || r.out != "w/2 c in\n" || r.errs != "no luck\n" {
		t.Errorf("work with a command: %v", r)
	}

	if r := carillon(t, "", "schedule", "w/3", "--in", "0s", "--queue", "failing"); r.code != 0 {
		t.Fatal(r)
	}
	carillon(t, "", "work", "failing", "--count", "1", "--", "sh", "-c", "echo half done >&2; exit 9")
	if r := carillon(t, "", "get", "w/3", "-o", "json"); !strings.Contains(r.out, "sh: exit status 9: half done") || !strings.Contains(r.out, `"attempt":1`) {
		t.Errorf("after a failed command: %v", r)
	}
}

// wrongUsage are command lines that cannot be meant, with what is said about them.
var wrongUsage = map[string]string{
	"frob":                                                          `unknown command "frob"`,
	"schedule":                                                      "ID is missing; usage: carillon schedule ID",
	"schedule a":                                                    "--in or --at is needed",
	"schedule a b":                                                  `"b" is one argument too many`,
	"schedule a --in 1s":                                            "--queue or --webhook is needed",
	"schedule a --in 1s --at x":                                     "only one can be given",
	"schedule a --in -5s --queue q":                                 "--in -5s is not valid: must not be negative",
	"schedule a --in -1d --queue q":                                 "must not be negative",
	"schedule a --in soon --queue q":                                `--in "soon" is not valid: a duration is needed`,
	"schedule a --in 1 --queue q":                                   `--in "1" is not valid`,
	"schedule a --at noon --queue q":                                `--at "noon" is not valid: an RFC 3339 instant is needed`,
	"schedule a --in 1s --webhook u --queue q":                      "only one can be given",
	"schedule a --every 5s":                                         "--queue or --webhook is needed",
	"schedule a --every 0s --queue q":                               "--every 0s is not valid: must be positive",
	"schedule a --every 5s --cron @daily --queue q":                 "only one can be given",
	"schedule a --every 5s --zone UTC --queue q":                    "--zone goes with --cron",
	"schedule a --cron @daily --fixed-delay --queue q":              "--fixed-delay goes with --every",
	"schedule a --cron= --queue q":                                  "--cron must not be empty",
	"schedule a --in 1s --queue q --count 3":                        "--count goes with --every or --cron",
	"schedule a --in 1s --queue q --overlap one":                    "--overlap goes with --every or --cron",
	"schedule a --in 1s --queue q --end 1h":                         "--end goes with --every or --cron",
	"schedule a --every 5s --queue q --count -1":                    "--count -1 is not valid",
	"schedule a --every 5s --queue q --misfire some":                `--misfire "some" is not one of one, none, all`,
	"schedule a --every 5s --queue q --overlap some":                `--overlap "some" is not one of skip, one, allow`,
	"schedule a --every 5s --queue q --catch-up 3":                  "--catch-up goes with --misfire all",
	"schedule a --every 5s --queue q --misfire all --catch-up 1001": "--catch-up 1001 is not valid: 1 to 1000",
	"schedule a --every 5s --queue q --max-late 0s":                 "--max-late 0s is not valid",
	"schedule a --every 5s --queue q --start noon":                  `--start "noon" is not valid: an RFC 3339 instant is needed`,
	"schedule a --in 1s --queue q --expires never":                  `--expires "never" is not valid`,
	"schedule a --in 1s --queue q --window 0s":                      "--window 0s is not valid",
	"schedule a --in 1s --queue q --backoff=-1s":                    "--backoff -1s is not valid: 1ms to 1d",
	"schedule a --in 1s --queue q --max-attempts 0":                 "--max-attempts 0 is not valid",
	"schedule a --in 1s --queue q --multiplier 0":                   "--multiplier 0 is not valid",
	"schedule a --in 1s --queue q --expected-revision 3":            "--expected-revision goes with --if-exists replace",
	"schedule a --in 1s --queue q --lease long":                     "a duration is needed, as 1500ms",
	"schedule a --in 1s --queue q --if-exists x":                    "--if-exists",
	"schedule a --in 1s --queue q --header x":                       `--header "x" is not valid: key=value is needed`,
	"schedule a --in 1s --queue q --label a=b --label a=c":          `--label "a" is given twice`,
	"schedule a --in 1s --queue q --data @/no/such/file":            "no such file",
	"schedule a --in 1s --queue q --lease 0s":                       "--lease 0s is not valid",
	"get a -o xml":                                                  `"xml" is not one of json, table`,
	"get a --timeout 0s":                                            "--timeout 0s is not valid",
	"get a --addr nonsense":                                         `address "nonsense" is not valid: host:port is needed`,
	"get a --frob":                                                  "unknown flag: --frob",
	"list --label a":                                                `--label "a" is not valid: key=value is needed`,
	"list --state dead":                                             `--state "dead" is not one of pending, firing, paused`,
	"list --due-before soon":                                        `--due-before "soon" is not valid`,
	"count x":                                                       "one argument too many",
	"count --due-from x":                                            `--due-from "x" is not valid`,
	"pause":                                                         "ID is missing",
	"resume a b":                                                    "one argument too many",
	"fire":                                                          "ID is missing",
	"explain":                                                       "ID is missing",
	"dead":                                                          "one of list, redrive, purge is needed",
	"dead frob":                                                     `"frob" is not one of list, redrive, purge`,
	"dead list --limit 0":                                           "--limit 0 is not valid",
	"dead purge":                                                    "KEY is missing; --all means all",
	"dead purge k --all":                                            "only one can be given",
	"dead redrive k --queue q":                                      "--queue goes with --all",
	"forecast --step 2m":                                            "--step 2m is not valid: 1s, 1m or 1h",
	"forecast --steps 3601":                                         "--steps 3601 is not valid",
	"forecast --from x":                                             `--from "x" is not valid`,
	"work q --extend":                                               "--refuse-code and --extend are for a COMMAND",
	"work q --refuse-code 256 -- x":                                 "--refuse-code 256 is not valid: 1 to 255",
	"list --limit 0":                                                "--limit 0 is not valid",
	"list --all --limit 5":                                          "only one can be given",
	"list x":                                                        "one argument too many",
	"work":                                                          "QUEUE is missing",
	"work q cmd":                                                    "a command comes after --",
	"work q --":                                                     "COMMAND is missing after --",
	"work -- cmd":                                                   "QUEUE is missing",
	"work q --count -1":                                             "--count -1 is not valid",
	"work q --concurrency 0":                                        "--concurrency 0 is not valid: 1 to 10,000",
	"work q --concurrency 10001":                                    "--concurrency 10001 is not valid: 1 to 10,000",
	"cluster":                                                       "one of status, members, shards is needed",
	"cluster frob":                                                  `"frob" is not one of status, members, shards`,
}

// They are refused before a connection is tried, each with one line that says why.
func TestWrongUsage(t *testing.T) {
	t.Setenv("CARILLON_ADDR", "127.0.0.1:1")
	for args, want := range wrongUsage {
		r := carillon(t, "", strings.Fields(args)...)
		if r.code != exitUsage || !strings.Contains(r.errs, want) || strings.Count(r.errs, "\n") != 1 || r.out != "" {
			t.Errorf("carillon %s: %q is missing: %v", args, want, r)
		}
	}
}

func TestNobodyAnswers(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	for _, args := range []string{"get a", "schedule a --in 1s --queue q", "work q", "cluster status"} {
		r := carillon(t, "", append(strings.Fields(args), "--addr", addr, "--timeout", "300ms")...)
		if r.code != exitUnavailable || !strings.Contains(r.errs, "no answer within 300ms") || !strings.Contains(r.errs, "connection refused") {
			t.Errorf("carillon %s: %v", args, r)
		}
	}
}

// Who waits for long hears for what, before the time is up.
func TestWaiting(t *testing.T) {
	t.Parallel()
	r := carillon(t, "", "get", "a", "--addr", "127.0.0.1:1", "--timeout", "2500ms")
	lines := strings.Split(r.errs, "\n")
	if r.code != exitUnavailable || len(lines) != 3 || lines[0] != "carillon: waiting for 127.0.0.1:1: connection refused" ||
		!strings.Contains(lines[1], "no answer within 2.5s") {
		t.Error(r)
	}
	both := &reach{addrs: []string{"a:1", "b:1"}, errs: map[string]error{"a:1": errors.New("no such host")}}
	if got := both.waiting(); got != "waiting for a:1: no such host, b:1: no answer" {
		t.Error(got)
	}
	both.passed = true
	if got := both.waiting(); got != "" {
		t.Error(got)
	}
}

func TestExitCodes(t *testing.T) {
	for err, want := range map[error]int{
		nil:                         exitDone,
		errors.New("any"):           exitFailed,
		client.ErrAlreadyExists:     exitFailed,
		client.ErrPaused:            exitFailed,
		client.ErrNotPending:        exitFailed,
		&client.RevisionError{}:     exitFailed,
		&client.InvalidError{}:      exitUsage,
		&client.NotSupportedError{}: exitUsage,
		usagef("x"):                 exitUsage,
		fmt.Errorf("get: %w", client.ErrNotFound): exitNotFound,
		client.ErrUnavailable:                     exitUnavailable,
		client.ErrUnknown:                         exitUnavailable,
		&client.OverloadedError{}:                 exitUnavailable,
	} {
		if got := exitCode(err); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "0d": 0, "2s": 2 * time.Second, "1.5h": 90 * time.Minute, "2d": 2 * day, "1w": 7 * day,
		"1w2d3h": 9*day + 3*time.Hour, "-1d": -day, "-2s": -2 * time.Second, "10ms": 10 * time.Millisecond, "36500d": 36500 * day,
	} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-", "1", "d", "w", "1d2w", "1h2d", "2d-1h", "--1d", "1d1", "200000d", "99999999999w", "1y", "NaN", "1.5d"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestShown(t *testing.T) {
	for text, want := range map[string]string{
		"plain ID/ü": "plain ID/ü", "a\nb": `"a\nb"`, "\x1b[31m": `"\x1b[31m"`, "\xff": `"\xff"`, "a\u202eb": `"a\u202eb"`,
	} {
		if got := shown(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	if got := shownPayload([]byte(strings.Repeat("ü", 100))); got != strings.Repeat("ü", 36)+"... (200 bytes)" {
		t.Errorf("a long payload: %s", got)
	}
	for d, want := range map[time.Duration]string{
		1500 * time.Microsecond: "in 2ms", -3 * time.Second: "3s ago", 90 * time.Minute: "in 1h30m", 49 * time.Hour: "in 2d1h", -48 * time.Hour: "2d ago",
		36500 * 24 * time.Hour: "in 36500d", -1 << 63: "106751d23h47m16.854775807s ago",
	} {
		if got := distance(d); got != want {
			t.Errorf("%v: %s", d, got)
		}
	}
}

func TestSpanText(t *testing.T) {
	const day = 24 * time.Hour
	for d, want := range map[time.Duration]string{
		0: "0s", time.Millisecond: "1ms", 90 * time.Second: "1m30s", time.Hour: "1h", 90 * time.Minute: "1h30m", day: "1d", 9*day + time.Hour: "9d1h",
		day + 1500*time.Millisecond: "1d1.5s", -time.Hour: "-1h", 10 * time.Minute: "10m", 20 * time.Hour: "20h", time.Hour + time.Second: "1h0m1s",
	} {
		got := spanText(d)
		back, err := parseDuration(got)
		if got != want || err != nil || back != d {
			t.Errorf("%v: %q, want %q; read back as %v, %v", d, got, want, back, err)
		}
	}
}

func TestShortPairs(t *testing.T) {
	long := strings.Repeat("ü", 100)
	for _, test := range []struct {
		pairs map[string]string
		want  string
	}{
		{nil, ""},
		{map[string]string{"b": "2", "a": "1"}, "a=1 b=2"},
		{map[string]string{"k": long, "m": "1"}, "k=" + strings.Repeat("ü", 15) + "... m=1"},
		{map[string]string{"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"}, "a=1 b=2 c=3 +2"},
	} {
		if got := shortPairs(test.pairs); got != test.want {
			t.Errorf("%v: %q, want %q", test.pairs, got, test.want)
		}
	}
}

// Each command of the client has a help with examples.
func TestHelp(t *testing.T) {
	for _, args := range []string{"schedule", "get", "cancel", "reschedule", "list", "work", "preview", "cluster", "cluster status", "cluster members",
		"cluster shards", "version", "pause", "resume", "fire", "explain", "count", "dead", "dead list", "dead redrive", "dead purge", "forecast"} {
		r := carillon(t, "", append(strings.Fields(args), "--help")...)
		if r.code != 0 || !strings.Contains(r.out, "Examples:\n  carillon ") || regexp.MustCompile(`--\S+ (string|stringArray|int|uint64)\b`).MatchString(r.out) {
			t.Errorf("%s: %v", args, r)
		}
	}
	if r := carillon(t, ""); r.code != 0 || !strings.Contains(r.out, "Use timers:") {
		t.Errorf("no arguments: %v", r)
	}
	if r := carillon(t, "", "version"); r.code != 0 || !strings.HasPrefix(r.out, "carillon ") {
		t.Errorf("version: %v", r)
	}
}
