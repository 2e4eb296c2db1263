package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func openTestIdentity(t *testing.T, dir, node string) *identity {
	t.Helper()
	id, err := openIdentity(dir, node)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func closeTestIdentity(t *testing.T, id *identity) {
	t.Helper()
	if err := id.close(); err != nil {
		t.Fatal(err)
	}
}

func TestIdentitySurvivesARestart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "deep", "n1")
	id := openTestIdentity(t, dir, "n1")
	pledge := &pledgeRecord{Proposer: "n1", Nodes: []string{"n1", "n2"}, Replicas: 2}
	if err := id.belong("c1", 16, pledge); err != nil {
		t.Fatal(err)
	}
	if err := id.belong("c2", 16, nil); !errors.Is(err, errOtherCluster) {
		t.Errorf("a second cluster: got %v", err)
	}
	if err := id.beginShards([]int{3}); err != nil || !id.firstTime(3) {
		t.Errorf("first opening: %v, %v", id.firstTime(3), err)
	}
	if err := os.WriteFile(filepath.Join(id.shardDir(3), raftFile), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := id.endShard(3); err != nil {
		t.Fatal(err)
	}
	before := id.get()
	closeTestIdentity(t, id)

	id = openTestIdentity(t, dir, "n1")
	defer closeTestIdentity(t, id)
	after := id.get()
	if after.DiskUUID != before.DiskUUID || after.ClusterID != "c1" || after.Shards != 16 || after.Pledge.Proposer != "n1" {
		t.Errorf("got %+v, want %+v", after, before)
	}
	if err := id.beginShards([]int{3}); err != nil || id.firstTime(3) {
		t.Errorf("second opening: first %v, %v", id.firstTime(3), err)
	}
	if got := after.shards(); len(got) != 1 || got[0] != 3 {
		t.Errorf("shards %v", got)
	}
}

// Each way in which a data folder must not be used, and a word of the error that says so.
func TestIdentityRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(t *testing.T, id *identity)
		node    string
		words   string
	}{
		"another node's folder": {func(*testing.T, *identity) {}, "n2", `belongs to node "n1"`},
		"a damaged file": {func(t *testing.T, id *identity) {
			if err := os.WriteFile(filepath.Join(id.dir, identityFile), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "n1", "is damaged"},
		"a lost shard": {func(t *testing.T, id *identity) {
			if err := id.beginShards([]int{7}); err != nil {
				t.Fatal(err)
			}
			if err := id.endShard(7); err != nil {
				t.Fatal(err)
			}
		}, "n1", "shard 7 is recorded"},
		"a lost directory": {func(t *testing.T, id *identity) {
			if _, err := id.beginDirectory(); err != nil {
				t.Fatal(err)
			}
			if err := id.endDirectory(); err != nil {
				t.Fatal(err)
			}
		}, "n1", "the directory is recorded"},
		"stores without a name": {func(t *testing.T, id *identity) {
			if _, err := id.beginDirectory(); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(filepath.Join(id.dir, identityFile)); err != nil {
				t.Fatal(err)
			}
		}, "n1", "but no node.json"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			id := openTestIdentity(t, dir, "n1")
			c.prepare(t, id)
			closeTestIdentity(t, id)
			if id, err := openIdentity(dir, c.node); err == nil {
				closeTestIdentity(t, id)
				t.Fatal("was opened")
			} else if !strings.Contains(err.Error(), c.words) {
				t.Errorf("error %q lacks %q", err, c.words)
			}
		})
	}
}

// A replica that a crash cut off while it was opened for the first time has never voted: its empty folder is no loss.
func TestIdentityTakesUpAnOpeningThatWasCutOff(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	id := openTestIdentity(t, dir, "n1")
	if err := id.beginShards([]int{1}); err != nil {
		t.Fatal(err)
	}
	closeTestIdentity(t, id)
	id = openTestIdentity(t, dir, "n1")
	defer closeTestIdentity(t, id)
	if err := id.beginShards([]int{1}); err != nil || !id.firstTime(1) {
		t.Errorf("first %v, %v", id.firstTime(1), err)
	}
}

func TestIdentityIsOneProcessAtATime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	id := openTestIdentity(t, dir, "n1")
	if _, err := openIdentity(dir, "n1"); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("a second process: got %v", err)
	}
	closeTestIdentity(t, id)
	closeTestIdentity(t, openTestIdentity(t, dir, "n1"))
}
