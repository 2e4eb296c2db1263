package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillon-timers/carillon/client"
)

// TestMain lets the test's own binary be the command, so that a shell can run the examples of OPTIONS.md.
func TestMain(m *testing.M) {
	if os.Getenv("CARILLON_TEST_AS_COMMAND") != "" {
		os.Exit(mainCode())
	}
	os.Exit(m.Run())
}

// doc is OPTIONS.md, in parts that can be run.
type doc struct {
	examples []example
	// options are those that have a row, by the commands of their section; "" is every command.
	options map[string][]string
	// fields are what the rows name in the package client.
	fields []string
}

// example is what is typed, and what comes.
type example struct {
	line     int
	commands []string
	// wants are found in what comes, one behind the other; whole asks for lines that begin so.
	wants []string
	whole bool
}

var span1 = regexp.MustCompile("`([^`]+)`")

// spans are the texts between backquotes.
func spans(text string) (list []string) {
	for _, m := range span1.FindAllStringSubmatch(text, -1) {
		list = append(list, m[1])
	}
	return list
}

func readDoc(t *testing.T) *doc {
	t.Helper()
	text, err := os.ReadFile("OPTIONS.md")
	if err != nil {
		t.Fatal(err)
	}
	d := &doc{options: make(map[string][]string)}
	var commands []string // of the section
	var block *example    // a step of a block
	inBlock := false
	for i, line := range strings.Split(string(text), "\n") {
		switch {
		case strings.HasPrefix(line, "```"):
			inBlock = strings.HasPrefix(line, "```console")
			block = nil
		case inBlock && strings.HasPrefix(line, "$ "):
			d.examples = append(d.examples, example{line: i + 1, commands: []string{line[2:]}, whole: true})
			block = &d.examples[len(d.examples)-1]
		case inBlock:
			block.wants = append(block.wants, line)
		case strings.HasPrefix(line, "## Every command"):
			commands = []string{""}
		case strings.HasPrefix(line, "## "):
			commands = spans(line)
		case strings.HasPrefix(line, "| `"):
			d.row(t, i+1, commands, strings.Split(strings.Trim(line, "| "), " | "))
		}
	}
	return d
}

// row takes a row of a table: option, field (or nothing), meaning, example, what it says.
func (d *doc) row(t *testing.T, line int, commands, cells []string) {
	t.Helper()
	if len(cells) < 4 {
		t.Fatalf("OPTIONS.md:%d: %d cells", line, len(cells))
	}
	for _, name := range spans(cells[0]) {
		for _, command := range commands {
			d.options[command] = append(d.options[command], strings.TrimLeft(name, "-"))
		}
	}
	if len(cells) == 5 {
		d.fields = append(d.fields, spans(cells[1])...)
	}
	d.examples = append(d.examples, example{line: line, commands: spans(cells[len(cells)-2]), wants: spans(cells[len(cells)-1])})
}

// Every example of OPTIONS.md is run, and says what is written there.
func TestOptionsExamples(t *testing.T) {
	startNode(t)
	putInPath(t)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/gone" {
			http.Error(w, "it has moved", http.StatusGone)
		}
	}))
	defer hook.Close()
	t.Setenv("HOOK", hook.URL)
	began := time.Now()
	examples := readDoc(t).examples
	for _, x := range examples {
		var out string
		for _, command := range x.commands {
			out, _ = shell(t, command)
		}
		if what := missing(out, x.wants, x.whole); what != "" {
			t.Errorf("OPTIONS.md:%d: %s\ndoes not say %q, but\n%s", x.line, strings.Join(x.commands, "\n"), what, out)
		}
	}
	if len(examples) < 100 {
		t.Errorf("only %d examples", len(examples))
	}
	t.Logf("%d examples took %v", len(examples), time.Since(began).Round(time.Millisecond))
}

// putInPath lets shells of the test find carillon.
func putInPath(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\nCARILLON_TEST_AS_COMMAND=1 exec '" + os.Args[0] + "' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "carillon"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// shell runs a line in an empty folder, but for an order.json, and returns all that it says and its exit code. Of a line that
// needs no shell it runs the command in this process, which is quicker.
func shell(t *testing.T, line string) (string, int) {
	t.Helper()
	if args := words(line); len(args) > 0 && args[0] == "carillon" && !strings.Contains(line, "order.json") {
		r := carillon(t, "", args[1:]...)
		return r.out + r.errs, r.code
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Stdout, cmd.Stderr, cmd.Dir = &out, &out, t.TempDir()
	if err := os.WriteFile(filepath.Join(cmd.Dir, "order.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); ctx.Err() != nil {
		t.Errorf("%s: does not end: %v", line, err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// words splits a line as a shell does; nil if it takes a shell to understand it.
func words(line string) (list []string) {
	var word strings.Builder
	var quote rune // that is open
	open := false  // a word is
	for _, r := range line {
		switch {
		case r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, open = r, true
		case quote != '\'' && strings.ContainsRune("$`\\", r), quote == 0 && strings.ContainsRune(";|&<>#*?", r):
			return nil
		case quote == 0 && r == ' ':
			if open {
				list = append(list, word.String())
			}
			word.Reset()
			open = false
		default:
			word.WriteRune(r)
			open = true
		}
	}
	if open {
		list = append(list, word.String())
	}
	return list
}

func TestWords(t *testing.T) {
	for line, want := range map[string][]string{
		`a  b`: {"a", "b"}, `a 'b "c" $d' "e 'f'"`: {"a", `b "c" $d`, "e 'f'"}, `a""b ''`: {"ab", ""},
		`a; b`: nil, `a | b`: nil, `a "$b"`: nil, `a > b`: nil,
	} {
		if got := words(line); !slices.Equal(got, want) {
			t.Errorf("%s: %q", line, got)
		}
	}
}

// missing is the first text that is not there, each behind the one before; "" if all are. However much space there is
// between words does not count.
func missing(out string, wants []string, whole bool) string {
	rest := "\n" + strings.Join(strings.FieldsFunc(strings.Map(oneSpace, out), func(r rune) bool { return r == '\n' }), "\n") + "\n"
	rest = regexp.MustCompile(` +`).ReplaceAllString(rest, " ")
	for _, want := range wants {
		var parts []string
		for _, part := range strings.Split(strings.Join(strings.Fields(want), " "), "...") {
			parts = append(parts, regexp.QuoteMeta(part))
		}
		pattern := strings.Join(parts, `[^\n]*?`)
		switch {
		case whole:
			pattern = `\n` + pattern
		case regexp.MustCompile(`^\d+$`).MatchString(want): // a count is all of its line
			pattern = `\n` + pattern + `\n`
		}
		at := regexp.MustCompile(pattern).FindStringIndex(rest)
		if at == nil {
			return want
		}
		rest = rest[at[1]:]
	}
	return ""
}

func oneSpace(r rune) rune {
	if r == '\t' {
		return ' '
	}
	return r
}

// Every option of every command of a client has a row, and no row is about an option that is not there.
func TestOptionsAreComplete(t *testing.T) {
	d := readDoc(t)
	known := map[string]map[string]bool{"": {}}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		path := c.CommandPath()
		if c.HasSubCommands() || groups[strings.Fields(path + " x")[1]] == "run" || strings.HasPrefix(path, "carillon bench") {
			return
		}
		known[path] = make(map[string]bool)
		c.Flags().VisitAll(func(f *pflag.Flag) {
			known[path][f.Name], known[""][f.Name] = true, true
			if !hasOption(d, path, f.Name) && !hasOption(d, "", f.Name) {
				t.Errorf("%s --%s is not in OPTIONS.md", path, f.Name)
			}
		})
	}
	walk(newRootCommand())
	for command, options := range d.options {
		for _, option := range options {
			if option == "o" || option == "help" {
				continue
			}
			if !known[command][option] && !strings.Contains(command, " ") {
				t.Errorf("OPTIONS.md: %s --%s is not there", command, option)
			}
		}
	}
}

func hasOption(d *doc, command, option string) bool {
	for _, o := range d.options[command] {
		if o == option {
			return true
		}
	}
	return false
}

// What the column Go names is there.
func TestOptionsFields(t *testing.T) {
	types := map[string]reflect.Type{}
	for _, v := range []any{
		client.Timer{}, client.Repeat{}, client.RetryPolicy{}, client.PreviewQuery{}, client.Move{}, client.Cancellation{}, client.Pause{},
		client.Change{}, client.ListQuery{}, client.Filter{}, client.WorkOptions{}, client.Delivery{}, client.DeadQuery{}, client.Letters{},
		client.ForecastQuery{},
	} {
		types[reflect.TypeOf(v).Name()] = reflect.TypeOf(v)
	}
	fields := readDoc(t).fields
	for _, name := range fields {
		of, field, _ := strings.Cut(name, ".")
		if types[of] == nil {
			t.Errorf("client has no %s", of)
		} else if _, ok := types[of].FieldByName(field); !ok {
			t.Errorf("client.%s has no %s", of, field)
		}
	}
	if len(fields) < 40 {
		t.Errorf("only %d fields", len(fields))
	}
}

// The Go examples that it names are there.
func TestOptionsGoExamples(t *testing.T) {
	text, err := os.ReadFile("OPTIONS.md")
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	for _, name := range []string{"example_test.go", "example_options_test.go"} {
		source, err := os.ReadFile(filepath.Join("../../client", name))
		if err != nil {
			t.Fatal(err)
		}
		tests.Write(source)
	}
	names := regexp.MustCompile("`(Example\\w+)`").FindAllStringSubmatch(string(text), -1)
	for _, name := range names {
		if !strings.Contains(tests.String(), "func "+name[1]+"()") {
			t.Errorf("client has no %s", name[1])
		}
	}
	if len(names) < 8 {
		t.Errorf("only %d examples", len(names))
	}
}

// The commands of the README are understood and do something; those that wait for deliveries are left out.
func TestReadmeExamples(t *testing.T) {
	startNode(t)
	putInPath(t)
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "## From the command line\n\n```\n")
	block, _, _ := strings.Cut(rest, "```")
	ran := 0
	for _, line := range strings.Split(strings.TrimSpace(block), "\n") {
		for _, command := range strings.Split(line, " ; ") {
			if strings.HasPrefix(command, "carillon work ") {
				continue
			}
			ran++
			if out, code := shell(t, command); code != 0 || out == "" {
				t.Errorf("%s: exit code %d: %s", command, code, out)
			}
		}
	}
	if ran < 10 {
		t.Errorf("only %d commands", ran)
	}
}

// The program of the README compiles as it stands.
func TestReadmeProgram(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```go\n")
	program, _, _ := strings.Cut(rest, "```")
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "vet", file).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

var commandPath = regexp.MustCompile(`carillon [a-z-]+( (list|redrive|purge|status|members|shards)\b)?`)

// The examples of each help are command lines that are understood: that nobody answers is all that is wrong.
func TestHelpExamples(t *testing.T) {
	putInPath(t)
	t.Setenv("CARILLON_ADDR", "127.0.0.1:1")
	ran := 0
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		if c.HasSubCommands() || c.Flags().Lookup("addr") == nil || strings.HasPrefix(c.CommandPath(), "carillon bench") {
			return
		}
		for _, line := range strings.Split(c.Example, "\n") {
			line, _, _ = strings.Cut(line, " | jq ")
			line, _, _ = strings.Cut(line, " | xargs ")
			if strings.Contains(line, "--addr") { // there may be somebody
				continue
			}
			line = commandPath.ReplaceAllString(line, "$0 --timeout 20ms")
			ran++
			if out, code := shell(t, line); code != exitUnavailable || !strings.Contains(out, "no answer within 20ms") {
				t.Errorf("%s: exit code %d: %s", line, code, out)
			}
		}
	}
	walk(newRootCommand())
	if ran < 45 {
		t.Errorf("only %d examples", ran)
	}
}
