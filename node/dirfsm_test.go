package node

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"reflect"
	"testing"

	"github.com/hashicorp/raft"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

var quiet = slog.New(slog.DiscardHandler)

func entryBytes(t *testing.T, e *logv1.DirectoryEntry) []byte {
	t.Helper()
	body, err := e.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	return seal(envelopeEntry, body)
}

func createEntry(id string) *logv1.DirectoryEntry {
	return &logv1.DirectoryEntry{Kind: &logv1.DirectoryEntry_Create{Create: &logv1.CreateCluster{
		ClusterId: id, Shards: 2, Replicas: 2,
		Members: []*logv1.DirectoryMember{
			{NodeId: "n2", DiskUuid: "d2", PeerAddr: "h2:1", Voter: true},
			{NodeId: "n1", DiskUuid: "d1", PeerAddr: "h1:1", Voter: true},
		},
		Placement: []*logv1.ShardReplicas{{Nodes: []string{"n1", "n2"}}, {Nodes: []string{"n2", "n1"}}},
	}}}
}

func putEntry(m member) *logv1.DirectoryEntry {
	return &logv1.DirectoryEntry{Kind: &logv1.DirectoryEntry_PutMember{PutMember: m.proto()}}
}

// A story of the directory's log: what each entry comes to, and at which version the state stands after it.
func TestDirectoryLog(t *testing.T) {
	t.Parallel()
	f := newDirectoryFSM(quiet)
	moved := member{ID: "n1", Disk: "d1", Boot: "b2", Peer: "h1:2", Voter: true}
	for i, step := range []struct {
		name    string
		entry   *logv1.DirectoryEntry
		refusal error
		version uint64
	}{
		{"a member of no cluster", putEntry(moved), errUnformed, 0},
		{"the cluster", createEntry("c1"), nil, 1},
		{"a second cluster", createEntry("c2"), errFormed, 1},
		{"a node that moved", putEntry(moved), nil, 2},
		{"the same again", putEntry(moved), nil, 2},
		{"a node with a new disk", putEntry(member{ID: "n1", Disk: "dX"}), errDiskChanged, 2},
		{"a node that joined", putEntry(member{ID: "n3", Disk: "d3"}), nil, 3},
	} {
		got := f.Apply(&raft.Log{Index: uint64(i + 1), Data: entryBytes(t, step.entry)})
		err, _ := got.(error)
		if !errors.Is(err, step.refusal) {
			t.Errorf("%s: got %v, want %v", step.name, err, step.refusal)
		}
		if state, _ := f.look(); state.Version != step.version {
			t.Errorf("%s: version %d, want %d", step.name, state.Version, step.version)
		}
	}
	state, _ := f.look()
	if got, want := state.memberIDs(), []string{"n1", "n2", "n3"}; !reflect.DeepEqual(got, want) {
		t.Errorf("members %v, want %v", got, want)
	}
	if state.ClusterID != "c1" || state.Members["n1"] != moved {
		t.Errorf("state %+v", state)
	}
	if got := state.shardsOf("n3"); got != nil {
		t.Errorf("a node that joined holds shards %v before the map says so", got)
	}
}

// A change wakes who waits for it; an entry that changes nothing does not.
func TestDirectoryWakes(t *testing.T) {
	t.Parallel()
	f := newDirectoryFSM(quiet)
	woken := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	_, changed := f.look()
	f.Apply(&raft.Log{Index: 1, Data: entryBytes(t, createEntry("c1"))})
	if !woken(changed) {
		t.Error("a change did not wake")
	}
	_, changed = f.look()
	f.Apply(&raft.Log{Index: 2, Data: entryBytes(t, createEntry("c1"))})
	if woken(changed) {
		t.Error("a refused entry woke")
	}
}

// Anything that this version cannot read stops the replica for good: to go on would let it differ from the others.
func TestDirectoryStopsAtWhatItCannotRead(t *testing.T) {
	t.Parallel()
	good := entryBytes(t, createEntry("c1"))
	flipped := bytes.Clone(good)
	flipped[len(flipped)-1] ^= 1
	newer := bytes.Clone(good)
	newer[len(envelopeMagic)]++
	for name, data := range map[string][]byte{
		"empty": nil, "flipped bit": flipped, "newer version": newer, "unknown kind": seal(envelopeEntry, nil),
		"a snapshot": seal(envelopeSnapshot, nil), "placed on a stranger": entryBytes(t, &logv1.DirectoryEntry{
			Kind: &logv1.DirectoryEntry_Create{Create: &logv1.CreateCluster{
				ClusterId: "c", Shards: 1, Replicas: 1, Placement: []*logv1.ShardReplicas{{Nodes: []string{"nobody"}}},
			}}}),
	} {
		f := newDirectoryFSM(quiet)
		if err, _ := f.Apply(&raft.Log{Index: 1, Data: data}).(error); err == nil || f.err() == nil {
			t.Errorf("%s: was applied", name)
		}
		f.Apply(&raft.Log{Index: 2, Data: good})
		if state, _ := f.look(); state.formed() {
			t.Errorf("%s: went on afterwards", name)
		}
	}
}

// memorySink is a raft.SnapshotSink in memory.
type memorySink struct {
	bytes.Buffer
	cancelled bool
}

func (*memorySink) ID() string      { return "memory" }
func (*memorySink) Close() error    { return nil }
func (s *memorySink) Cancel() error { s.cancelled = true; return nil }

func TestDirectorySnapshot(t *testing.T) {
	t.Parallel()
	write := func(f *directoryFSM) []byte {
		snapshot, err := f.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		var sink memorySink
		if err := snapshot.Persist(&sink); err != nil {
			t.Fatal(err)
		}
		return sink.Bytes()
	}
	a, b := newDirectoryFSM(quiet), newDirectoryFSM(quiet)
	a.Apply(&raft.Log{Index: 1, Data: entryBytes(t, createEntry("c1"))})
	a.Apply(&raft.Log{Index: 2, Data: entryBytes(t, putEntry(member{ID: "n9", Disk: "d9", Client: "h9:1"}))})
	raw := write(a)
	if err := b.Restore(io.NopCloser(bytes.NewReader(raw))); err != nil {
		t.Fatal(err)
	}
	want, _ := a.look()
	got, _ := b.look()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("restored %+v, want %+v", got, want)
	}
	if !bytes.Equal(write(b), raw) {
		t.Error("equal states give different bytes")
	}
	raw[len(raw)-1] ^= 1
	if err := b.Restore(io.NopCloser(bytes.NewReader(raw))); err == nil {
		t.Error("a damaged snapshot was restored")
	}
	if again, _ := b.look(); again != got {
		t.Error("a damaged snapshot changed the state")
	}
}

// The decoder takes anything that a disk may give back.
func FuzzDirectoryEntry(f *testing.F) {
	body, err := createEntry("c1").MarshalVT()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seal(envelopeEntry, body))
	f.Add([]byte(envelopeMagic))
	f.Fuzz(func(_ *testing.T, data []byte) {
		fsm := newDirectoryFSM(quiet)
		fsm.Apply(&raft.Log{Index: 1, Data: data})
		fsm.Apply(&raft.Log{Index: 2, Data: seal(envelopeEntry, data)})
	})
}
