package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// slackTest makes TestSlacken the process that is looked at.
const slackTest = "CARILLON_TEST_SLACK"

func TestSlacken(t *testing.T) {
	if text := os.Getenv(slackTest); text != "" {
		slack, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		slacken(slack)
		fmt.Printf("pid %d slack %v mark %q\n", os.Getpid(), slackOfThread(), os.Getenv(slackMark))
		return
	}
	before := slackOfThread()
	for _, c := range []struct {
		name        string
		slack, want time.Duration
		mark        string
	}{
		{"set", 3 * time.Millisecond, 3 * time.Millisecond, ""},
		{"no more than there is", 1, before, ""},
		{"an exec that kept nothing is not tried for ever", 3 * time.Millisecond, before, slackMark + "=1"},
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSlacken$")
		cmd.Env = append(os.Environ(), slackTest+"="+c.slack.String())
		if c.mark != "" {
			cmd.Env = append(cmd.Env, c.mark)
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", c.name, err, out)
		}
		if want := fmt.Sprintf("pid %d slack %v mark \"\"\n", cmd.Process.Pid, c.want); !strings.Contains(string(out), want) {
			t.Errorf("%s: no %q in\n%s", c.name, want, out)
		}
	}
}
