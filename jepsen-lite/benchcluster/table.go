package main

import (
	"fmt"
	"strconv"
	"strings"
)

// row is one figure with its target.
type row struct {
	Target string  `json:"target"` // T5 and so on
	What   string  `json:"what"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	// Goal and Stretch are the targets; 0 means none.
	Goal    float64 `json:"goal,omitempty"`
	Stretch float64 `json:"stretch,omitempty"`
	// More says that more is better.
	More bool `json:"more_is_better"`
	// Zero says that the goal is none at all.
	Zero bool `json:"zero_is_the_goal,omitempty"`
}

// verdict says whether the target was met.
func (r row) verdict() string {
	reaches := func(goal float64) bool {
		if r.More {
			return r.Value >= goal
		}
		return r.Value <= goal
	}
	switch {
	case r.Zero:
		if r.Value == 0 {
			return "yes"
		}
		return "**no**"
	case r.Stretch != 0 && reaches(r.Stretch):
		return "stretch"
	case r.Goal == 0:
		return ""
	case reaches(r.Goal):
		return "yes"
	}
	return "**no**"
}

// goal shows a target with its direction.
func (r row) goal(value float64) string {
	switch {
	case r.Zero && value == r.Goal:
		return "0"
	case value == 0 || r.Zero:
		return ""
	case r.More:
		return "≥ " + number(value)
	}
	return "≤ " + number(value)
}

// number shows three digits or whole numbers with commas.
func number(v float64) string {
	switch {
	case v >= 100:
		text := strconv.FormatFloat(v, 'f', 0, 64)
		for i := len(text) - 3; i > 0; i -= 3 {
			text = text[:i] + "," + text[i:]
		}
		return text
	case v == float64(int(v)):
		return strconv.Itoa(int(v))
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// markdown is the table with where it comes from.
func markdown(machine string, rows []row, notes []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s.\n\n| # | what | measured | unit | target | stretch | met |\n|---|---|---:|---|---:|---:|---|\n", machine)
	for _, r := range rows {
		stretch := ""
		if !r.Zero {
			stretch = r.goal(r.Stretch)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n",
			r.Target, r.What, number(r.Value), r.Unit, r.goal(r.Goal), stretch, r.verdict())
	}
	for _, n := range notes {
		fmt.Fprintf(&b, "\n%s\n", n)
	}
	return b.String()
}
