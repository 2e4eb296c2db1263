package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// measureApart measures an engine in a process of its own, so that what another one left behind (timers that the runtime
// still keeps, a torn heap) is in nobody's figures.
func measureApart(e contender, d dist, n int, bubble bool) figures {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(self, "-apart", fmt.Sprintf("%s %d %t %s", d.name, n, bubble, e.name))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		panic(fmt.Sprintf("%v: %v\n%s", cmd.Args, err, out))
	}
	var f figures
	in := strings.NewReader(string(out))
	for _, p := range f.all() {
		if _, err := fmt.Fscan(in, p); err != nil {
			panic(fmt.Sprintf("%v: %v\n%s", cmd.Args, err, out))
		}
	}
	return f
}

// measureHere does what measureApart asks for and prints the figures.
func measureHere(t *testing.T, task string) {
	var distName string
	var n int
	var bubble bool
	if _, err := fmt.Sscan(task, &distName, &n, &bubble); err != nil {
		panic(fmt.Sprintf("-apart %q: %v", task, err))
	}
	for _, d := range dists {
		for _, e := range engines {
			if d.name == distName && strings.HasSuffix(task, " "+e.name) {
				f := measure(t, e.make, d, n, bubble)
				for _, p := range f.all() {
					fmt.Println(*p)
				}
				return
			}
		}
	}
	panic(fmt.Sprintf("-apart %q: there is no such measurement", task))
}
