package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// A cluster on the segment log takes timers, stops, and has them after a restart; a start with the other store is refused,
// and so is one whose log is gone.
func TestSegmentLog(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	on := func(store string) Config {
		config := c.config("n1", 1)
		config.LogStore, config.Join = store, nil
		return config
	}
	c.start(on(LogStoreSegment))
	c.waitReady()
	for shard := range 2 {
		if _, err := c.timers(t, "n1").Schedule(t.Context(), &carillonv1.ScheduleRequest{Timer: &carillonv1.Timer{Id: idOf(shard, 2), Target: &carillonv1.Timer_Queue{Queue: "q"}, When: inAnHour}}); err != nil {
			t.Fatal(err)
		}
	}
	_, body := c.httpGet("n1", "/metrics")
	for _, line := range []string{"carillon_log_segments 1", "carillon_log_damaged 0", "carillon_log_append_seconds_count"} {
		if !strings.Contains(body, line) {
			t.Errorf("metrics lack %q", line)
		}
	}
	if strings.Contains(body, "carillon_log_append_seconds_count 0") || strings.Contains(body, "carillon_log_batches_total 0") {
		t.Error("the writes of the log are not timed")
	}
	c.stop("n1")
	refused := c.start(on(LogStoreBolt))
	<-refused.done
	if refused.err == nil || !strings.Contains(refused.err.Error(), `say "segment"`) {
		t.Errorf("the other store: %v", refused.err)
	}
	if again := c.start(on(LogStoreSegment)); c.nodes["n1"] != again {
		t.Fatal(again.err)
	}
	c.waitReady()
	for shard := range 2 {
		if _, err := c.timers(t, "n1").Get(t.Context(), &carillonv1.GetRequest{Id: idOf(shard, 2)}); err != nil {
			t.Errorf("shard %d after a restart: %v", shard, err)
		}
	}
	c.stop("n1")
	if err := os.RemoveAll(filepath.Join(c.dir, "n1", logFolder)); err != nil {
		t.Fatal(err)
	}
	refused = c.start(on(LogStoreSegment))
	<-refused.done
	if refused.err == nil || !strings.Contains(refused.err.Error(), "vote twice") {
		t.Errorf("the log is gone: %v", refused.err)
	}
}

// A folder from before the field existed keeps bolt; an empty one takes what it is told.
func TestLogStoreOfAnOldFolder(t *testing.T) {
	t.Parallel()
	id := openTestIdentity(t, t.TempDir(), "n1")
	defer closeTestIdentity(t, id)
	for _, c := range []struct{ ask, want string }{{LogStoreBolt, LogStoreBolt}, {"", LogStoreSegment}, {LogStoreSegment, LogStoreSegment}} {
		if got, err := id.useLogStore(c.ask); err != nil || got != c.want || id.get().LogStore != c.want {
			t.Errorf("an empty folder, asked for %q: %q, %v", c.ask, got, err)
		}
	}
	if err := id.update(func(d *identityData) (bool, error) { d.LogStore, d.Directory = "", storeOpened; return true, nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := id.useLogStore(LogStoreSegment); err == nil || !strings.Contains(err.Error(), `say "bolt"`) {
		t.Errorf("an old folder: %v", err)
	}
	for _, ask := range []string{LogStoreBolt, ""} {
		if got, err := id.useLogStore(ask); err != nil || got != LogStoreBolt {
			t.Errorf("an old folder, asked for %q: %q, %v", ask, got, err)
		}
	}
	config := DefaultConfig()
	config.ID, config.Dir, config.LogStore = "n1", "d", "paper"
	if err := config.Validate(); err == nil || !strings.Contains(err.Error(), "LogStore") {
		t.Errorf("a store that there is not: %v", err)
	}
}
