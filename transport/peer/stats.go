package peer

import (
	"maps"
	"slices"
	"sync/atomic"
)

// Stats are a mux's counters since it was made, and its gauges now.
type Stats struct {
	FramesIn, FramesOut uint64
	BytesIn, BytesOut   uint64
	// Dials and DialErrors count the diallings, Accepted and Refused what came in (Refused: failed handshakes).
	Dials, DialErrors, Accepted, Refused uint64
	// Lost counts peer connections that broke, Reconnects those that an immediate re-dial brought back.
	Lost, Reconnects uint64
	// BadFrames counts connections closed for what they sent.
	BadFrames uint64
	// CallErrors counts calls, Raft's included, that got no answer.
	CallErrors uint64
	// QueueFull counts messages turned away on the way out, Busy requests turned away on the way in.
	QueueFull, Busy uint64
	// Expired counts Raft requests dropped because their caller had given up.
	Expired uint64
	// Panics counts handlers that panicked.
	Panics uint64
	// SnapshotsSent and SnapshotsReceived count InstallSnapshots that ended well, SnapshotErrors those sent that did
	// not, SnapshotBytes what was sent.
	SnapshotsSent, SnapshotsReceived, SnapshotErrors, SnapshotBytes uint64

	// Gauges: open connections, what waits to be sent, Raft requests that wait for their group, calls being served.
	Connections, QueuedMessages, QueuedBytes, Inbound, Handlers int
}

type counters struct {
	framesIn, framesOut, bytesIn, bytesOut                          atomic.Uint64
	dials, dialErrors, accepted, refused                            atomic.Uint64
	lost, reconnects, badFrames, callErrors                         atomic.Uint64
	queueFull, busy, expired, panics                                atomic.Uint64
	snapshotsSent, snapshotsReceived, snapshotErrors, snapshotBytes atomic.Uint64
}

// Stats returns the counters and gauges; the values are not of one instant.
func (m *Mux) Stats() Stats {
	c := &m.stats
	s := Stats{
		FramesIn: c.framesIn.Load(), FramesOut: c.framesOut.Load(), BytesIn: c.bytesIn.Load(), BytesOut: c.bytesOut.Load(),
		Dials: c.dials.Load(), DialErrors: c.dialErrors.Load(), Accepted: c.accepted.Load(), Refused: c.refused.Load(),
		Lost: c.lost.Load(), Reconnects: c.reconnects.Load(), BadFrames: c.badFrames.Load(),
		CallErrors: c.callErrors.Load(), QueueFull: c.queueFull.Load(), Busy: c.busy.Load(), Expired: c.expired.Load(),
		Panics: c.panics.Load(), SnapshotsSent: c.snapshotsSent.Load(), SnapshotsReceived: c.snapshotsReceived.Load(),
		SnapshotErrors: c.snapshotErrors.Load(), SnapshotBytes: c.snapshotBytes.Load(),
	}
	s.Handlers = m.gate.running()
	m.mu.Lock()
	conns := slices.Collect(maps.Keys(m.conns))
	groups := slices.Collect(maps.Values(m.groups))
	m.mu.Unlock()
	s.Connections = len(conns)
	for _, c := range conns {
		n, b := c.out.depth()
		s.QueuedMessages += n
		s.QueuedBytes += b
	}
	for _, g := range groups {
		s.Inbound += g.waiting()
	}
	return s
}
