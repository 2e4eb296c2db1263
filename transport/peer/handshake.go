package peer

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// protocolMin and protocolMax are the protocol versions that this build speaks.
const (
	protocolMin = 1
	protocolMax = 1
)

const helloMagic = "CRLN"

// maxHandshakeBytes bounds a handshake frame.
const maxHandshakeBytes = 4 << 10

// connKind says what a connection is for.
type connKind uint8

const (
	kindPeer     connKind = 1 // requests of both nodes
	kindSnapshot connKind = 2 // one InstallSnapshot
	kindOnce     connKind = 3 // one CallAddr
)

// identity is who a node says it is.
type identity struct {
	cluster, node, boot, version string
}

// hello is the dialler's half of the handshake.
type hello struct {
	min, max uint16
	kind     connKind
	self     identity
	expect   string // the node that is addressed; "" when only its address is known
}

// welcome is the acceptor's half: an identity, or a refusal.
type welcome struct {
	code     uint8
	message  string
	protocol uint16
	self     identity
}

func appendIdentity(b []byte, i identity) []byte {
	b = appendString(b, i.cluster)
	b = appendString(b, i.node)
	b = appendString(b, i.boot)
	return appendString(b, i.version)
}

func (d *decoder) identity() identity {
	return identity{
		cluster: d.name(maxNameBytes), node: d.name(maxNameBytes), boot: d.name(maxNameBytes), version: d.name(maxNameBytes),
	}
}

func (d *decoder) uint16() uint16 {
	return uint16(d.byte()) | uint16(d.byte())<<8
}

func encodeHello(h hello) []byte {
	b := append([]byte(nil), helloMagic...)
	b = binary.LittleEndian.AppendUint16(b, h.min)
	b = binary.LittleEndian.AppendUint16(b, h.max)
	b = append(b, byte(h.kind))
	b = appendIdentity(b, h.self)
	return appendString(b, h.expect)
}

// decodeHello leaves room for later versions to append fields.
func decodeHello(b []byte) (hello, error) {
	if len(b) < len(helloMagic) || string(b[:len(helloMagic)]) != helloMagic {
		return hello{}, fmt.Errorf("%w: not a hello", ErrBadFrame)
	}
	d := &decoder{b: b[len(helloMagic):]}
	h := hello{min: d.uint16(), max: d.uint16(), kind: connKind(d.byte()), self: d.identity(), expect: d.name(maxNameBytes)}
	if d.err == nil && (h.kind < kindPeer || h.kind > kindOnce) {
		d.fail("unknown kind of connection")
	}
	return h, d.err
}

func encodeWelcome(w welcome) []byte {
	b := append([]byte(nil), w.code)
	b = appendString(b, w.message)
	b = binary.LittleEndian.AppendUint16(b, w.protocol)
	return appendIdentity(b, w.self)
}

func decodeWelcome(b []byte) (welcome, error) {
	d := &decoder{b: b}
	w := welcome{code: d.byte(), message: d.name(maxHandshakeBytes), protocol: d.uint16(), self: d.identity()}
	return w, d.err
}

func (m *Mux) identity() identity {
	return identity{cluster: m.c.ClusterID(), node: m.c.NodeID, boot: m.c.BootID, version: m.c.Version}
}

// checkCluster is nil if the two may talk: they are of one cluster, or at least one is of none yet.
func checkCluster(own, other identity) *HandshakeError {
	if own.cluster == other.cluster || own.cluster == "" || other.cluster == "" {
		return nil
	}
	return &HandshakeError{Code: RefusedCluster, Message: fmt.Sprintf(
		"node %q is of cluster %q, node %q of cluster %q", own.node, own.cluster, other.node, other.cluster)}
}

// judge is the acceptor's check of a hello.
func judge(own identity, h hello) *HandshakeError {
	if h.min > protocolMax || h.max < protocolMin {
		return &HandshakeError{Code: RefusedVersion, Message: fmt.Sprintf(
			"node %q speaks versions %d to %d of the protocol, node %q %d to %d",
			own.node, protocolMin, protocolMax, h.self.node, h.min, h.max)}
	}
	if h.expect != "" && h.expect != own.node {
		return &HandshakeError{Code: RefusedNode, Message: fmt.Sprintf(
			"node %q was addressed as %q by node %q", own.node, h.expect, h.self.node)}
	}
	if h.self.node == own.node {
		return &HandshakeError{Code: RefusedSelf, Message: fmt.Sprintf(
			"both ends call themselves node %q (boots %q and %q)", own.node, own.boot, h.self.boot)}
	}
	if h.self.node == "" {
		return &HandshakeError{Code: RefusedNode, Message: "the dialler has no node ID"}
	}
	return checkCluster(own, h.self)
}

// guard closes nc when ctx ends first; the function that it returns ends the watch.
func guard(ctx context.Context, nc net.Conn) func() bool {
	return context.AfterFunc(ctx, func() { _ = nc.Close() })
}

// introduce is the dialler's handshake. It returns the reader, which may have read ahead.
func (m *Mux) introduce(nc net.Conn, kind connKind, expect string) (*bufio.Reader, identity, error) {
	own := m.identity()
	_ = nc.SetDeadline(now().Add(m.c.DialTimeout))
	body := encodeHello(hello{min: protocolMin, max: protocolMax, kind: kind, self: own, expect: expect})
	if _, err := nc.Write(appendFrame(nil, header{typ: typeHello}, nil, body)); err != nil {
		return nil, identity{}, fmt.Errorf("handshake: %w", err)
	}
	br, body, err := readHandshake(nc, typeWelcome)
	if err != nil {
		return nil, identity{}, fmt.Errorf("handshake: %w", err)
	}
	w, err := decodeWelcome(body)
	if err != nil {
		return nil, identity{}, fmt.Errorf("handshake: %w", err)
	}
	_ = nc.SetDeadline(noDeadline)
	return br, w.self, judgeWelcome(own, w, expect)
}

// judgeWelcome is the dialler's check.
func judgeWelcome(own identity, w welcome, expect string) error {
	if w.code == RefusedSelf && w.self.node == own.node && w.self.boot == own.boot {
		return ErrSelf
	}
	if w.code != 0 {
		return &HandshakeError{Code: w.code, Message: w.message}
	}
	if w.protocol < protocolMin || w.protocol > protocolMax {
		return &HandshakeError{Code: RefusedVersion, Message: fmt.Sprintf(
			"node %q chose version %d of the protocol, node %q speaks %d to %d",
			w.self.node, w.protocol, own.node, protocolMin, protocolMax)}
	}
	if expect != "" && w.self.node != expect || w.self.node == "" {
		return &HandshakeError{Code: RefusedNode, Message: fmt.Sprintf(
			"node %q answered at the address of node %q", w.self.node, expect)}
	}
	if err := checkCluster(own, w.self); err != nil {
		return err
	}
	return nil
}

// receive is the acceptor's handshake.
func (m *Mux) receive(nc net.Conn) (*bufio.Reader, hello, error) {
	_ = nc.SetDeadline(now().Add(m.c.DialTimeout))
	br, body, err := readHandshake(nc, typeHello)
	if err != nil {
		return nil, hello{}, err
	}
	h, err := decodeHello(body)
	if err != nil {
		return nil, hello{}, err
	}
	own := m.identity()
	w := welcome{protocol: min(protocolMax, h.max), self: own}
	refusal := judge(own, h)
	if refusal != nil {
		w = welcome{code: refusal.Code, message: refusal.Message, self: own}
	}
	if _, err := nc.Write(appendFrame(nil, header{typ: typeWelcome}, nil, encodeWelcome(w))); err != nil {
		return nil, h, err
	}
	_ = nc.SetDeadline(noDeadline)
	if refusal != nil {
		return nil, h, refusal
	}
	return br, h, nil
}

func readHandshake(nc net.Conn, want frameType) (*bufio.Reader, []byte, error) {
	a := newReassembler(nc, fragmentBytes)
	h, err := a.readHeader()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("the other end closed: %w", err)
		}
		return nil, nil, err
	}
	if h.typ != want || h.length > maxHandshakeBytes {
		return nil, nil, fmt.Errorf("%w: type %d of %d bytes in the handshake", ErrBadFrame, h.typ, h.length)
	}
	body := make([]byte, h.length)
	if err := a.readPayload(h, body); err != nil {
		return nil, nil, err
	}
	return a.r, body, nil
}
