package shard

import (
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/hashicorp/raft"
)

const (
	// persistPiece is how much of a snapshot is written at once.
	persistPiece = 128 << 10
	// persistFlush is how much is written between flushes: a flush of all at the end would hold up those of the log.
	persistFlush = 4 << 20
	// persistHaste is how many times faster than its rate a snapshot is written at most, while the log outgrows its threshold.
	persistHaste = 4
	// persistSlack is how much lost time is caught up: after a sort or a slow flush the rest would come in one piece.
	persistSlack = 50 * time.Millisecond
)

// persisting writes a snapshot beside Apply.
type persisting struct {
	s        *Shard
	snapshot *raftfsm.Snapshot
}

// Persist implements raft.FSMSnapshot. Raft closes the sink.
func (p *persisting) Persist(sink raft.SnapshotSink) error {
	w := &paced{
		w: sink, stop: p.s.stopping, rate: p.s.c.SnapshotRate, haste: p.s.snapshots.haste, now: p.s.d.Monotonic,
		file: openState(p.s.c.Dir, sink.ID()),
	}
	if w.file != nil {
		defer w.file.Close()
	}
	w.next = w.now()
	n, err := p.snapshot.WriteTo(w)
	if err != nil {
		return err
	}
	p.s.snapshots.wrote(n)
	return nil
}

// Release implements raft.FSMSnapshot.
func (p *persisting) Release() { p.snapshot.Release() }

// openState opens the file that Raft's store of snapshots writes, to flush it; nil if the store keeps it elsewhere.
func openState(dir, id string) *os.File {
	if dir == "" {
		return nil
	}
	file, err := os.OpenFile(filepath.Join(dir, "snapshots", id+".tmp", "state.bin"), os.O_WRONLY, 0)
	if err != nil {
		return nil
	}
	return file
}

// paced writes at a bounded rate until the shard stops.
type paced struct {
	w     io.Writer
	stop  <-chan struct{}
	rate  int64          // bytes a second
	haste func() float64 // how many times the rate may be exceeded now
	now   func() time.Time
	file  *os.File // flushed now and then; may be nil

	next             time.Time // no byte is written before
	written, flushed int64
}

func (p *paced) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		select {
		case <-p.stop:
			return done, ErrUnavailable
		default:
		}
		n, err := p.w.Write(b[done:min(done+persistPiece, len(b))])
		done += n
		p.written += int64(n)
		if err != nil {
			return done, err
		}
		if err := p.flush(); err != nil {
			return done, err
		}
		p.pause(n)
	}
	return done, nil
}

func (p *paced) flush() error {
	if p.file == nil || p.written-p.flushed < persistFlush {
		return nil
	}
	p.flushed = p.written
	return p.file.Sync()
}

// pause waits for as long as so many bytes may take.
func (p *paced) pause(n int) {
	now := p.now()
	if late := now.Add(-persistSlack); p.next.Before(late) {
		p.next = late
	}
	p.next = p.next.Add(time.Duration(float64(n) / (float64(p.rate) * p.haste()) * float64(time.Second)))
	ahead := p.next.Sub(now)
	if ahead < time.Millisecond {
		return
	}
	wait := time.NewTimer(ahead)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-p.stop:
	}
}
