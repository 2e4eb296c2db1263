package local

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
)

// Measure is one line of a report of `carillon bench`; the names are those of its JSON.
type Measure struct {
	Name  string `json:"name"`
	Count int64  `json:"count"`
	// Failed are those that the load asked for in vain.
	Failed int64   `json:"errors"`
	Rate   float64 `json:"rate"`
	P50    float64 `json:"p50_ms"`
	P99    float64 `json:"p99_ms"`
	Max    float64 `json:"max_ms"`
}

// Report is what `carillon bench -o json` prints, as far as it is of use here.
type Report struct {
	Measures []Measure `json:"measures"`
	Fires    struct {
		Early      int64   `json:"early"`
		Duplicates int64   `json:"duplicates"`
		Lost       int64   `json:"lost"`
		Behind     int64   `json:"behind"`
		Gap        float64 `json:"largest_gap_ms"`
	} `json:"fires"`
	// Problem is what the bench complained about; empty if nothing.
	Problem string `json:"-"`
}

// Measure returns the line with the name; the zero Measure if there is none.
func (r Report) Measure(name string) Measure {
	for _, m := range r.Measures {
		if m.Name == name {
			return m
		}
	}
	return Measure{}
}

// Bench runs `carillon bench` with the arguments against the cluster, in a process of its own. The error says that there
// is no report; a report of a load that went wrong has a Problem.
func (c *Cluster) Bench(ctx context.Context, args ...string) (Report, error) {
	full := append([]string{"bench"}, args...)
	full = append(full, "-o", "json", "--timeout", "30s", "--addr", strings.Join(c.Addrs(), ","))
	cmd := exec.CommandContext(ctx, c.Nodes[0].Path, full...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	ran := cmd.Run()
	var r Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return r, fmt.Errorf("bench %s: no report: %w (%w)\n%s", strings.Join(args, " "), err, ran, errs.String())
	}
	if ran != nil {
		r.Problem = strings.TrimSpace(errs.String())
	}
	return r, nil
}
