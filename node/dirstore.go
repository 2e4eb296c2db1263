package node

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"github.com/carillon-timers/carillon/shard"
)

// boltWait is how long the file's lock is waited for.
const boltWait = time.Second

// openDirectoryStore opens the directory's log and votes. bbolt panics on some damage: that becomes an error here.
func openDirectoryStore(dir string) (store directoryStore, err error) {
	path := filepath.Join(dir, raftFile)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			store, err = nil, &shard.DamagedError{Path: path, Cause: fmt.Errorf("panic: %v", p)}
		}
	}()
	bolt, err := raftboltdb.New(raftboltdb.Options{
		Path: path,
		BoltOptions: &bbolt.Options{
			Timeout: boltWait,
			// The free list is rebuilt when the file is opened instead of being written with each commit.
			NoFreelistSync: true, FreelistType: bbolt.FreelistMapType,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("directory: open %s: %w", path, err)
	}
	return bolt, nil
}

// raftLogger brings the lines of the directory's Raft to slog, one level lower: Raft calls every failed heartbeat an error.
func raftLogger(to *slog.Logger) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name: "directory", Level: hclog.Info, Output: raftLog{to}, DisableTime: true,
	})
}

type raftLog struct{ to *slog.Logger }

func (w raftLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	level, rest, found := strings.Cut(text, "]")
	if !found {
		rest = text
	}
	rest = strings.TrimSpace(rest)
	switch level {
	case "[ERROR":
		w.to.Warn(rest)
	case "[WARN":
		w.to.Info(rest)
	default:
		w.to.Debug(rest)
	}
	return len(line), nil
}
