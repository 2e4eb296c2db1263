package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// A snapshot has a connection of its own: after the handshake the leader sends one Install frame, then data frames
// until the size is reached. The follower sends a Progress frame now and then, and at last the response. Each side
// gives up when the other makes no progress for SnapshotStall.

// sendSnapshot is the leader's side.
func (g *groupTransport) sendSnapshot(
	node string, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader,
) error {
	m := g.m
	ctx, cancel := context.WithCancelCause(g.ctx)
	defer cancel(nil)
	defer context.AfterFunc(m.context(), func() { cancel(ErrClosed) })()
	select {
	case m.sends <- struct{}{}:
	case <-ctx.Done():
		return &CallError{Node: node, Err: context.Cause(ctx)}
	}
	release := sync.OnceFunc(func() { <-m.sends })
	defer release()
	dctx, done := context.WithTimeout(ctx, m.c.DialTimeout)
	defer done()
	nc, br, _, err := m.dial(dctx, kindSnapshot, node, "")
	if err != nil {
		return &CallError{Node: node, Err: err}
	}
	defer func() { _ = nc.Close() }()
	defer guard(ctx, nc)()
	s := &snapshotSender{m: m, nc: nc, in: reassemblerOf(br, m.c.MaxMessage), group: g.id}
	err = s.stream(ctx, args, data)
	release() // the follower may restore for long
	if errors.Is(err, errSource) {
		return &CallError{Node: node, Sent: true, Err: err}
	}
	// After a failed write the follower may still have said why.
	body, rerr := s.answer(err != nil)
	if rerr == nil {
		return g.decode(body, resp)
	}
	if err == nil {
		err = rerr
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return &CallError{Node: node, Sent: true, Err: err}
}

// errSource marks that the snapshot could not be read here.
var errSource = errors.New("read snapshot")

type snapshotSender struct {
	m     *Mux
	nc    net.Conn
	in    *reassembler
	group uint32
}

// stream sends the request and the data.
func (s *snapshotSender) stream(ctx context.Context, args *raft.InstallSnapshotRequest, data io.Reader) error {
	request := encodeInstall(nil, args)
	if len(request) > fragmentBytes {
		return fmt.Errorf("%w: a configuration of %d bytes", ErrTooLarge, len(request))
	}
	if err := s.write(appendFrame(nil, header{typ: typeInstall, group: s.group}, nil, request)); err != nil {
		return err
	}
	chunk := make([]byte, s.m.pacer.chunk())
	frame := make([]byte, 0, headerBytes+len(chunk))
	for left := args.Size; left > 0; {
		n, err := io.ReadFull(data, chunk[:min(left, int64(len(chunk)))])
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("%w: %w with %d of %d bytes left", errSource, err, left-int64(n), args.Size)
		}
		if !s.m.pacer.wait(ctx, n) {
			return context.Cause(ctx)
		}
		frame = appendFrame(frame[:0], header{typ: typeSnapshotData, group: s.group}, nil, chunk[:n])
		if err := s.write(frame); err != nil {
			return err
		}
		s.m.stats.snapshotBytes.Add(uint64(n))
		left -= int64(n)
	}
	return nil
}

func (s *snapshotSender) write(frame []byte) error {
	_ = s.nc.SetWriteDeadline(now().Add(s.m.c.SnapshotStall))
	_, err := s.nc.Write(frame)
	return stalled(err, s.m.c.SnapshotStall)
}

// stalled names a time-out.
func stalled(err error, after time.Duration) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w for %v", errStalled, after)
	}
	return err
}

// answer waits for the response, as long as the follower shows that it works. broken: the connection has failed, only
// what has come already is read.
func (s *snapshotSender) answer(broken bool) ([]byte, error) {
	end := now().Add(s.m.c.RestoreTimeout)
	for {
		limit := now().Add(s.m.c.SnapshotStall)
		if broken {
			limit = now().Add(s.m.c.DialTimeout / 4)
			end = limit
		}
		if !now().Before(end) {
			return nil, fmt.Errorf("%w: no answer %v after the last byte", errStalled, s.m.c.RestoreTimeout)
		}
		_ = s.nc.SetReadDeadline(limit)
		h, body, err := s.in.next()
		if err != nil {
			return nil, stalled(err, s.m.c.SnapshotStall)
		}
		switch h.typ {
		case typeResponse:
			return body, nil
		case typeProgress:
		default:
			return nil, fmt.Errorf("%w: type %d on a snapshot connection", ErrBadFrame, h.typ)
		}
	}
}

// reassemblerOf goes on with a reader of the handshake.
func reassemblerOf(br *bufio.Reader, maxMessage int) *reassembler {
	return &reassembler{r: br, maxMessage: maxMessage, maxParts: maxMessage, parts: map[partKey]*part{}}
}

// receiveSnapshot is the follower's side; it owns nc.
func (m *Mux) receiveSnapshot(ctx context.Context, nc net.Conn, br *bufio.Reader, from hello) {
	defer func() { _ = nc.Close() }()
	defer guard(ctx, nc)()
	r := &snapshotReader{m: m, nc: nc, in: reassemblerOf(br, m.c.MaxMessage)}
	_ = nc.SetReadDeadline(now().Add(m.c.SnapshotStall))
	h, body, err := r.in.next()
	if err == nil && h.typ != typeInstall {
		err = fmt.Errorf("%w: type %d begins a snapshot connection", ErrBadFrame, h.typ)
	}
	var command any
	if err == nil {
		command, err = decodeRaftRequest(h.typ, body)
	}
	if err != nil {
		m.snapshotFailed(from.self.node, h.group, err)
		return
	}
	r.left = command.(*raft.InstallSnapshotRequest).Size
	answer, err := m.install(ctx, from, h.group, r, command)
	payload := append([]byte(nil), responseOK)
	if err == nil {
		payload, err = encodeRaftResponse(payload, answer)
	}
	if err != nil {
		m.snapshotFailed(from.self.node, h.group, err)
		payload = encodeError(nil, err)
	} else {
		m.stats.snapshotsReceived.Add(1)
	}
	_ = nc.SetWriteDeadline(now().Add(m.c.SnapshotStall))
	_, err = nc.Write(appendFrame(nil, header{typ: typeResponse, group: h.group}, nil, payload))
	if err != nil && ctx.Err() == nil {
		m.snapshotFailed(from.self.node, h.group, err)
	}
}

func (m *Mux) snapshotFailed(from string, group uint32, err error) {
	if errors.Is(err, ErrBadFrame) {
		m.stats.badFrames.Add(1)
	}
	m.log.Warn("snapshot not received", "from", from, "group", group, "error", err)
}

// install hands the request to Raft and waits for its answer, telling the leader all along that it still works.
func (m *Mux) install(ctx context.Context, from hello, group uint32, r *snapshotReader, command any) (any, error) {
	own := m.c.ClusterID()
	if own == "" || own != from.self.cluster {
		return nil, m.notMember()
	}
	g := m.groupOf(group)
	if g == nil {
		return nil, m.noGroup(group)
	}
	answer := make(chan raft.RPCResponse, 1)
	rpc := raft.RPC{Command: command, Reader: r, RespChan: answer}
	consumer := (chan<- raft.RPC)(g.consum)
	tick := time.NewTicker(m.c.SnapshotStall / 4)
	defer tick.Stop()
	progress := appendFrame(nil, header{typ: typeProgress, group: group}, nil, nil)
	for {
		select {
		case consumer <- rpc:
			consumer = nil
		case a := <-answer:
			return a.Response, a.Error
		case <-tick.C:
			_ = r.nc.SetWriteDeadline(now().Add(m.c.SnapshotStall))
			if _, err := r.nc.Write(progress); err != nil {
				_ = r.nc.Close() // so that Raft's reading ends too
				return nil, stalled(err, m.c.SnapshotStall)
			}
		case <-g.ctx.Done():
			return nil, m.noGroup(group)
		case <-ctx.Done():
			return nil, ErrClosed
		}
	}
}

// snapshotReader gives Raft the data of the frames. Touched by Raft's main loop alone once it is handed over.
type snapshotReader struct {
	m    *Mux
	nc   net.Conn
	in   *reassembler
	left int64
	cur  []byte
	err  error
}

// Read implements io.Reader; it ends with io.EOF after the size that was announced.
func (r *snapshotReader) Read(p []byte) (int, error) {
	for len(r.cur) == 0 {
		if r.err == nil && r.left == 0 {
			r.err = io.EOF
		}
		if r.err != nil {
			return 0, r.err
		}
		r.fill()
	}
	n := copy(p, r.cur)
	r.cur = r.cur[n:]
	return n, nil
}

func (r *snapshotReader) fill() {
	_ = r.nc.SetReadDeadline(now().Add(r.m.c.SnapshotStall))
	h, body, err := r.in.next()
	switch {
	case errors.Is(err, io.EOF):
		r.err = fmt.Errorf("snapshot ends with %d bytes to come: %w", r.left, io.ErrUnexpectedEOF)
	case err != nil:
		r.err = stalled(err, r.m.c.SnapshotStall)
	case h.typ != typeSnapshotData || len(body) == 0 || int64(len(body)) > r.left:
		r.err = fmt.Errorf("%w: type %d of %d bytes in a snapshot", ErrBadFrame, h.typ, len(body))
	default:
		r.cur = body
		r.left -= int64(len(body))
	}
}
