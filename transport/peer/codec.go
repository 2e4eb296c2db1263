package peer

//lint:file-ignore SA1019 Raft still sends and reads the deprecated fields.

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// codecVersion is the first byte of every encoded Raft message. A new layout gets a new number and a new range of
// protocol versions in the handshake.
const codecVersion = 1

// minLogBytes is the least encoding of one log entry; it bounds the entries that a length can promise.
const minLogBytes = 6

func appendBytes(b, v []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

func appendString(b []byte, v string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendHeader(b []byte, h *raft.RPCHeader) []byte {
	b = append(b, codecVersion)
	b = binary.AppendUvarint(b, uint64(h.ProtocolVersion))
	b = appendBytes(b, h.ID)
	return appendBytes(b, h.Addr)
}

func appendLog(b []byte, l *raft.Log) []byte {
	b = binary.AppendUvarint(b, l.Index)
	b = binary.AppendUvarint(b, l.Term)
	b = append(b, byte(l.Type))
	var at int64
	if !l.AppendedAt.IsZero() {
		at = l.AppendedAt.UnixNano()
	}
	b = binary.AppendVarint(b, at)
	b = appendBytes(b, l.Data)
	return appendBytes(b, l.Extensions)
}

// appendSize is an upper bound of the encoding's size.
func appendSize(r *raft.AppendEntriesRequest) int {
	n := 96 + len(r.ID) + len(r.Addr) + len(r.Leader)
	for _, l := range r.Entries {
		n += logSize(l)
	}
	return n
}

func logSize(l *raft.Log) int { return 48 + len(l.Data) + len(l.Extensions) }

// cutEntries drops the entries beyond the limit in bytes, but never the first. It changes the request that Raft has
// passed: Raft reads there how far the follower has come when the answer says success, and what to send next.
func cutEntries(r *raft.AppendEntriesRequest, limit int) {
	n := 0
	for i, l := range r.Entries {
		if n += logSize(l); n > limit && i > 0 {
			r.Entries = r.Entries[:i]
			return
		}
	}
}

func encodeAppendEntries(b []byte, r *raft.AppendEntriesRequest) []byte {
	b = appendHeader(b, &r.RPCHeader)
	b = binary.AppendUvarint(b, r.Term)
	b = appendBytes(b, r.Leader)
	b = binary.AppendUvarint(b, r.PrevLogEntry)
	b = binary.AppendUvarint(b, r.PrevLogTerm)
	b = binary.AppendUvarint(b, r.LeaderCommitIndex)
	b = binary.AppendUvarint(b, uint64(len(r.Entries)))
	for _, l := range r.Entries {
		b = appendLog(b, l)
	}
	return b
}

func encodeAppendEntriesResponse(b []byte, r *raft.AppendEntriesResponse) []byte {
	b = appendHeader(b, &r.RPCHeader)
	b = binary.AppendUvarint(b, r.Term)
	b = binary.AppendUvarint(b, r.LastLog)
	b = appendBool(b, r.Success)
	return appendBool(b, r.NoRetryBackoff)
}

func encodeVote(b []byte, r *raft.RequestVoteRequest) []byte {
	b = appendHeader(b, &r.RPCHeader)
	b = binary.AppendUvarint(b, r.Term)
	b = appendBytes(b, r.Candidate)
	b = binary.AppendUvarint(b, r.LastLogIndex)
	b = binary.AppendUvarint(b, r.LastLogTerm)
	return appendBool(b, r.LeadershipTransfer)
}

func encodeVoteResponse(b []byte, r *raft.RequestVoteResponse) []byte {
	b = appendHeader(b, &r.RPCHeader)
	b = binary.AppendUvarint(b, r.Term)
	b = appendBytes(b, r.Peers)
	return appendBool(b, r.Granted)
}

func encodePreVote(b []byte, r *raft.RequestPreVoteRequest) []byte {
	b = appendHeader(b, &r.RPCHeader)
	b = binary.AppendUvarint(b, r.Term)
	b = binary.AppendUvarint(b, r.LastLogIndex)
	return binary.AppendUvarint(b, r.LastLogTerm)
}

func encodePreVoteResponse(b []byte, r *raft.RequestPreVoteResponse) []byte {
	b = appendHeader(b, &r.RPCHeader)
	b = binary.AppendUvarint(b, r.Term)
	return appendBool(b, r.Granted)
}

func encodeInstall(b []byte, r *raft.InstallSnapshotRequest) []byte {
	b = appendHeader(b, &r.RPCHeader)
	b = binary.AppendUvarint(b, uint64(r.SnapshotVersion))
	b = binary.AppendUvarint(b, r.Term)
	b = appendBytes(b, r.Leader)
	b = binary.AppendUvarint(b, r.LastLogIndex)
	b = binary.AppendUvarint(b, r.LastLogTerm)
	b = appendBytes(b, r.Peers)
	b = appendBytes(b, r.Configuration)
	b = binary.AppendUvarint(b, r.ConfigurationIndex)
	return binary.AppendUvarint(b, uint64(r.Size))
}

func encodeInstallResponse(b []byte, r *raft.InstallSnapshotResponse) []byte {
	b = appendHeader(b, &r.RPCHeader)
	b = binary.AppendUvarint(b, r.Term)
	return appendBool(b, r.Success)
}

// encodeRaftResponse encodes what Raft answered; the type is one of the five responses.
func encodeRaftResponse(b []byte, v any) ([]byte, error) {
	switch r := v.(type) {
	case *raft.AppendEntriesResponse:
		return encodeAppendEntriesResponse(b, r), nil
	case *raft.RequestVoteResponse:
		return encodeVoteResponse(b, r), nil
	case *raft.RequestPreVoteResponse:
		return encodePreVoteResponse(b, r), nil
	case *raft.InstallSnapshotResponse:
		return encodeInstallResponse(b, r), nil
	case *raft.TimeoutNowResponse:
		return appendHeader(b, &r.RPCHeader), nil
	}
	return b, fmt.Errorf("encode raft response: unknown type %T", v)
}

// decoder reads the fields of a message in order. The first field that does not fit sets err, and all later ones are
// zero. Byte fields alias the message.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrBadFrame, what)
	}
	d.b = nil
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail("short or overlong integer")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail("short or overlong integer")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail("short message")
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) bool() bool {
	v := d.byte()
	if v > 1 {
		d.fail("bad boolean")
	}
	return v == 1
}

func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.fail("length beyond the message")
		return nil
	}
	if n == 0 {
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

// name reads a string of at most max bytes.
func (d *decoder) name(max int) string {
	v := d.bytes()
	if len(v) > max {
		d.fail("name too long")
		return ""
	}
	return string(v)
}

func (d *decoder) header() raft.RPCHeader {
	if v := d.byte(); d.err == nil && v != codecVersion {
		d.fail(fmt.Sprintf("unknown codec version %d", v))
	}
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersion(d.uvarint()), ID: d.bytes(), Addr: d.bytes()}
}

func (d *decoder) log(l *raft.Log) {
	l.Index, l.Term, l.Type = d.uvarint(), d.uvarint(), raft.LogType(d.byte())
	if at := d.varint(); at != 0 {
		l.AppendedAt = time.Unix(0, at)
	}
	l.Data = d.bytes()
	l.Extensions = d.bytes()
}

// end demands that nothing is left.
func (d *decoder) end() error {
	if d.err == nil && len(d.b) != 0 {
		d.fail("bytes left over")
	}
	return d.err
}

func decodeAppendEntries(d *decoder) *raft.AppendEntriesRequest {
	r := &raft.AppendEntriesRequest{
		RPCHeader: d.header(), Term: d.uvarint(), Leader: d.bytes(), PrevLogEntry: d.uvarint(), PrevLogTerm: d.uvarint(),
		LeaderCommitIndex: d.uvarint(),
	}
	n := d.uvarint()
	if n > uint64(len(d.b)/minLogBytes) {
		d.fail("more entries than bytes")
		return r
	}
	if n == 0 {
		return r
	}
	logs := make([]raft.Log, n)
	r.Entries = make([]*raft.Log, n)
	for i := range logs {
		d.log(&logs[i])
		r.Entries[i] = &logs[i]
	}
	return r
}

func decodeAppendEntriesResponse(d *decoder, r *raft.AppendEntriesResponse) {
	*r = raft.AppendEntriesResponse{
		RPCHeader: d.header(), Term: d.uvarint(), LastLog: d.uvarint(), Success: d.bool(), NoRetryBackoff: d.bool(),
	}
}

func decodeVote(d *decoder) *raft.RequestVoteRequest {
	return &raft.RequestVoteRequest{
		RPCHeader: d.header(), Term: d.uvarint(), Candidate: d.bytes(), LastLogIndex: d.uvarint(),
		LastLogTerm: d.uvarint(), LeadershipTransfer: d.bool(),
	}
}

func decodeVoteResponse(d *decoder, r *raft.RequestVoteResponse) {
	*r = raft.RequestVoteResponse{RPCHeader: d.header(), Term: d.uvarint(), Peers: d.bytes(), Granted: d.bool()}
}

func decodePreVote(d *decoder) *raft.RequestPreVoteRequest {
	return &raft.RequestPreVoteRequest{
		RPCHeader: d.header(), Term: d.uvarint(), LastLogIndex: d.uvarint(), LastLogTerm: d.uvarint(),
	}
}

func decodePreVoteResponse(d *decoder, r *raft.RequestPreVoteResponse) {
	*r = raft.RequestPreVoteResponse{RPCHeader: d.header(), Term: d.uvarint(), Granted: d.bool()}
}

func decodeInstall(d *decoder) *raft.InstallSnapshotRequest {
	r := &raft.InstallSnapshotRequest{
		RPCHeader: d.header(), SnapshotVersion: raft.SnapshotVersion(d.uvarint()), Term: d.uvarint(), Leader: d.bytes(),
		LastLogIndex: d.uvarint(), LastLogTerm: d.uvarint(), Peers: d.bytes(), Configuration: d.bytes(),
		ConfigurationIndex: d.uvarint(), Size: int64(d.uvarint()),
	}
	if r.Size < 0 {
		d.fail("negative snapshot size")
	}
	return r
}

func decodeInstallResponse(d *decoder, r *raft.InstallSnapshotResponse) {
	*r = raft.InstallSnapshotResponse{RPCHeader: d.header(), Term: d.uvarint(), Success: d.bool()}
}

// decodeRaftRequest decodes the request of a frame type; any doubt is an ErrBadFrame.
func decodeRaftRequest(t frameType, b []byte) (any, error) {
	d := &decoder{b: b}
	var v any
	switch t {
	case typeAppendEntries:
		v = decodeAppendEntries(d)
	case typeVote:
		v = decodeVote(d)
	case typePreVote:
		v = decodePreVote(d)
	case typeTimeoutNow:
		v = &raft.TimeoutNowRequest{RPCHeader: d.header()}
	case typeInstall:
		v = decodeInstall(d)
	default:
		d.fail("not a raft request")
	}
	return v, d.end()
}

// decodeRaftResponse decodes into one of the five responses.
func decodeRaftResponse(b []byte, resp any) error {
	d := &decoder{b: b}
	switch r := resp.(type) {
	case *raft.AppendEntriesResponse:
		decodeAppendEntriesResponse(d, r)
	case *raft.RequestVoteResponse:
		decodeVoteResponse(d, r)
	case *raft.RequestPreVoteResponse:
		decodePreVoteResponse(d, r)
	case *raft.InstallSnapshotResponse:
		decodeInstallResponse(d, r)
	case *raft.TimeoutNowResponse:
		r.RPCHeader = d.header()
	default:
		d.fail(fmt.Sprintf("unknown response type %T", resp))
	}
	return d.end()
}
