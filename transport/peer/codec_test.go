package peer

//lint:file-ignore SA1019 Raft still sends and reads the deprecated fields.

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

var testHeader = raft.RPCHeader{ProtocolVersion: 3, ID: []byte("replica-1"), Addr: []byte("n1")}

// requests and responses hold one of each type, every field set.
func requests() map[frameType]any {
	return map[frameType]any{
		typeAppendEntries: &raft.AppendEntriesRequest{
			RPCHeader: testHeader, Term: 1 << 40, Leader: []byte("n1"), PrevLogEntry: 7, PrevLogTerm: 6, LeaderCommitIndex: 5,
			Entries: []*raft.Log{
				{Index: 8, Term: 6, Type: raft.LogCommand, Data: []byte("data"), Extensions: []byte("x"), AppendedAt: time.Unix(1, 2)},
				{Index: 9, Term: 6, Type: raft.LogNoop},
			},
		},
		typeVote: &raft.RequestVoteRequest{
			RPCHeader: testHeader, Term: 3, Candidate: []byte("n2"), LastLogIndex: 300, LastLogTerm: 2, LeadershipTransfer: true,
		},
		typePreVote:    &raft.RequestPreVoteRequest{RPCHeader: testHeader, Term: 3, LastLogIndex: 300, LastLogTerm: 2},
		typeTimeoutNow: &raft.TimeoutNowRequest{RPCHeader: testHeader},
		typeInstall: &raft.InstallSnapshotRequest{
			RPCHeader: testHeader, SnapshotVersion: 1, Term: 4, Leader: []byte("n1"), LastLogIndex: 9, LastLogTerm: 3,
			Peers: []byte("p"), Configuration: []byte("conf"), ConfigurationIndex: 2, Size: 1 << 33,
		},
	}
}

func responses() []any {
	return []any{
		&raft.AppendEntriesResponse{RPCHeader: testHeader, Term: 9, LastLog: 8, Success: true, NoRetryBackoff: true},
		&raft.RequestVoteResponse{RPCHeader: testHeader, Term: 9, Peers: []byte("p"), Granted: true},
		&raft.RequestPreVoteResponse{RPCHeader: testHeader, Term: 9, Granted: true},
		&raft.InstallSnapshotResponse{RPCHeader: testHeader, Term: 9, Success: true},
		&raft.TimeoutNowResponse{RPCHeader: testHeader},
	}
}

func encodeRequest(v any) []byte {
	switch r := v.(type) {
	case *raft.AppendEntriesRequest:
		return encodeAppendEntries(nil, r)
	case *raft.RequestVoteRequest:
		return encodeVote(nil, r)
	case *raft.RequestPreVoteRequest:
		return encodePreVote(nil, r)
	case *raft.InstallSnapshotRequest:
		return encodeInstall(nil, r)
	}
	return appendHeader(nil, &v.(*raft.TimeoutNowRequest).RPCHeader)
}

// Every field survives, and every shortened message is refused.
func TestCodecRequests(t *testing.T) {
	t.Parallel()
	for typ, want := range requests() {
		b := encodeRequest(want)
		got, err := decodeRaftRequest(typ, b)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("type %d: got %+v, %v; want %+v", typ, got, err, want)
		}
		for n := range b {
			if _, err := decodeRaftRequest(typ, b[:n]); !errors.Is(err, ErrBadFrame) {
				t.Errorf("type %d cut to %d of %d bytes: %v", typ, n, len(b), err)
			}
		}
		if _, err := decodeRaftRequest(typ, append(bytes.Clone(b), 0)); !errors.Is(err, ErrBadFrame) {
			t.Errorf("type %d with a byte left over: %v", typ, err)
		}
		b[0]++
		if _, err := decodeRaftRequest(typ, b); !errors.Is(err, ErrBadFrame) {
			t.Errorf("type %d of another codec version: %v", typ, err)
		}
	}
	if n, most := len(encodeRequest(requests()[typeAppendEntries])), appendSize(requests()[typeAppendEntries].(*raft.AppendEntriesRequest)); n > most {
		t.Errorf("encoding is %d bytes, appendSize says at most %d", n, most)
	}
}

func TestCodecResponses(t *testing.T) {
	t.Parallel()
	for _, want := range responses() {
		b, err := encodeRaftResponse(nil, want)
		if err != nil {
			t.Fatal(err)
		}
		got := reflect.New(reflect.TypeOf(want).Elem()).Interface()
		if err := decodeRaftResponse(b, got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
		for n := range b {
			if err := decodeRaftResponse(b[:n], got); !errors.Is(err, ErrBadFrame) {
				t.Errorf("%T cut to %d of %d bytes: %v", want, n, len(b), err)
			}
		}
	}
	if _, err := encodeRaftResponse(nil, 1); err == nil {
		t.Error("an unknown type was encoded")
	}
}

// A length that promises more entries than there are bytes must not make the decoder allocate for them.
func TestCodecEntryCount(t *testing.T) {
	t.Parallel()
	b := encodeAppendEntries(nil, &raft.AppendEntriesRequest{RPCHeader: testHeader})
	b = append(b[:len(b)-1], 0xff, 0xff, 0xff, 0xff, 0x0f)
	if _, err := decodeRaftRequest(typeAppendEntries, b); !errors.Is(err, ErrBadFrame) {
		t.Errorf("4 G entries in no bytes: %v", err)
	}
}

// A request is cut to the limit in bytes, and keeps one entry however large.
func TestCutEntries(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ entries, size, limit, want int }{
		{0, 0, 100, 0}, {3, 100, 1000, 3}, {3, 100, 300, 2}, {3, 100, 10, 1}, {1, 5000, 10, 1},
	} {
		r := &raft.AppendEntriesRequest{}
		for range c.entries {
			r.Entries = append(r.Entries, &raft.Log{Data: make([]byte, c.size)})
		}
		if cutEntries(r, c.limit); len(r.Entries) != c.want {
			t.Errorf("%+v: %d entries", c, len(r.Entries))
		}
	}
}

func FuzzRaftRequest(f *testing.F) {
	for typ, r := range requests() {
		f.Add(uint8(typ), encodeRequest(r))
	}
	f.Fuzz(func(t *testing.T, typ uint8, b []byte) {
		v, err := decodeRaftRequest(frameType(typ), b)
		if err != nil {
			return
		}
		again, err := decodeRaftRequest(frameType(typ), encodeRequest(v))
		if err != nil || !reflect.DeepEqual(v, again) {
			t.Fatalf("decoded %+v, again %+v, %v", v, again, err)
		}
	})
}

func FuzzRaftResponse(f *testing.F) {
	for i, r := range responses() {
		b, _ := encodeRaftResponse([]byte{responseOK}, r)
		f.Add(i, b)
	}
	f.Add(0, encodeError(nil, &RemoteError{Kind: 3, Message: "m", Detail: []byte("d")}))
	f.Fuzz(func(t *testing.T, i int, b []byte) {
		body, err := parseResponse(b)
		if err != nil || i < 0 {
			return
		}
		all := responses()
		_ = decodeRaftResponse(body, all[i%len(all)])
	})
}

func FuzzHandshake(f *testing.F) {
	id := identity{cluster: "c", node: "n", boot: "b", version: "v"}
	f.Add(encodeHello(hello{min: 1, max: 2, kind: kindPeer, self: id, expect: "m"}))
	f.Add(encodeWelcome(welcome{code: RefusedNode, message: "m", protocol: 1, self: id}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := decodeHello(b); err == nil {
			if again, err := decodeHello(encodeHello(h)); err != nil || again != h {
				t.Fatalf("hello %+v, again %+v, %v", h, again, err)
			}
		}
		if w, err := decodeWelcome(b); err == nil {
			if again, err := decodeWelcome(encodeWelcome(w)); err != nil || again != w {
				t.Fatalf("welcome %+v, again %+v, %v", w, again, err)
			}
		}
	})
}
