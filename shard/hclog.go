package shard

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// raftLogger passes what Raft logs on to slog: its errors as warnings, all else for debugging only, since the shard itself tells
// of changes of leadership.
type raftLogger struct {
	to      *slog.Logger
	name    string
	implied []any
}

func newRaftLogger(to *slog.Logger) hclog.Logger { return &raftLogger{to: to} }

// routine are Raft's errors about a peer that does not answer: several a second, for each shard, as long as a node is down.
var routine = []string{
	"failed to heartbeat to", "failed to appendEntries to", "failed to make requestVote RPC",
	"failed to pipeline appendEntries", "failed to start pipeline replication to", "peer has newer term",
}

func lower(level hclog.Level, msg string) slog.Level {
	if level < hclog.Error || slices.ContainsFunc(routine, func(r string) bool { return strings.HasPrefix(msg, r) }) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// Log implements hclog.Logger.
func (l *raftLogger) Log(level hclog.Level, msg string, args ...any) {
	to := lower(level, msg)
	if !l.to.Enabled(context.Background(), to) {
		return
	}
	plain := make([]any, len(args))
	for i, arg := range args {
		if f, ok := arg.(hclog.Format); ok && len(f) > 0 {
			arg = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		}
		plain[i] = arg
	}
	l.to.Log(context.Background(), to, "raft: "+msg, plain...)
}

func (l *raftLogger) Trace(msg string, args ...any) { l.Log(hclog.Trace, msg, args...) }
func (l *raftLogger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l *raftLogger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l *raftLogger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l *raftLogger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

func (l *raftLogger) enabled(level hclog.Level) bool {
	return l.to.Enabled(context.Background(), lower(level, ""))
}

func (l *raftLogger) IsTrace() bool { return l.enabled(hclog.Trace) }
func (l *raftLogger) IsDebug() bool { return l.enabled(hclog.Debug) }
func (l *raftLogger) IsInfo() bool  { return l.enabled(hclog.Info) }
func (l *raftLogger) IsWarn() bool  { return l.enabled(hclog.Warn) }
func (l *raftLogger) IsError() bool { return l.enabled(hclog.Error) }

func (l *raftLogger) ImpliedArgs() []any { return l.implied }
func (l *raftLogger) Name() string       { return l.name }

func (l *raftLogger) With(args ...any) hclog.Logger {
	return &raftLogger{l.to.With(args...), l.name, append(append([]any{}, l.implied...), args...)}
}

func (l *raftLogger) Named(name string) hclog.Logger {
	if l.name != "" {
		name = l.name + "." + name
	}
	return l.ResetNamed(name)
}

func (l *raftLogger) ResetNamed(name string) hclog.Logger {
	return &raftLogger{l.to, name, l.implied}
}

// SetLevel does nothing: the level is that of the slog logger.
func (l *raftLogger) SetLevel(hclog.Level)  {}
func (l *raftLogger) GetLevel() hclog.Level { return hclog.NoLevel }

func (l *raftLogger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return slog.NewLogLogger(l.to.Handler(), slog.LevelDebug)
}

func (l *raftLogger) StandardWriter(o *hclog.StandardLoggerOptions) io.Writer {
	return l.StandardLogger(o).Writer()
}
