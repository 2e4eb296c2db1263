package shard

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/hashicorp/go-hclog"
)

func TestRaftLogger(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	handler := slog.NewTextHandler(&out, &slog.HandlerOptions{
		Level: slog.LevelInfo,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})
	l := newRaftLogger(slog.New(handler)).With("shard", 3).Named("raft")
	l.Info("entering follower state")
	l.Error("failed to heartbeat to", "peer", "n2")
	l.Error("failed to take snapshot", "error", hclog.Fmt("%d of %d", 1, 2))
	l.StandardLogger(nil).Println("debugging only")
	want := "level=WARN msg=\"raft: failed to take snapshot\" shard=3 error=\"1 of 2\"\n"
	if got := out.String(); got != want {
		t.Errorf("got  %swant %s", got, want)
	}
	if l.IsInfo() || !l.IsError() || l.Name() != "raft" || len(l.ImpliedArgs()) != 2 {
		t.Errorf("info %t, error %t, name %q, implied %v", l.IsInfo(), l.IsError(), l.Name(), l.ImpliedArgs())
	}
}
