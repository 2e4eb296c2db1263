package main

import (
	"bytes"
	"strings"
	"testing"
)

// A value that its flag cannot read was told in the words of the parser ("strconv.ParseInt: parsing ...: invalid syntax").
func TestValuesThatAreNone(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"server --snapshot-entries abc":         `--snapshot-entries "abc" is not valid: a whole number (write a snapshot of a shard after this number of log entries`,
		"server --shards 1.5":                   `--shards "1.5" is not valid: a whole number (`,
		"server --stop-timeout ten":             `--stop-timeout "ten" is not valid: a time such as 300ms, 5s or 1h (`,
		"server --pprof=maybe":                  `--pprof "maybe" is not valid: true or false (`,
		"dev --nodes 99999999999999999999":      `--nodes "99999999999999999999" is not valid: a whole number (`,
		"list --limit many":                     `--limit "many" is not valid: a whole number (`,
		"schedule x --queue q --max-attempts x": `--max-attempts "x" is not valid: a whole number (`,
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), strings.Fields(line), strings.NewReader(""), &out, &errs)
		if code != exitUsage || !strings.HasPrefix(errs.String(), "carillon: "+want) || strings.Contains(errs.String(), "strconv") {
			t.Errorf("%s: %d %q", line, code, errs.String())
		}
	}
}

// The help showed "--log-store segment", as if that were the name of what it takes.
func TestPlaceholders(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"server", "dev"} {
		var out, errs bytes.Buffer
		run(t.Context(), []string{command, "--help"}, strings.NewReader(""), &out, &errs)
		if !strings.Contains(out.String(), "--log-store kind ") {
			t.Errorf("%s: %s%s", command, out.String(), errs.String())
		}
	}
}
