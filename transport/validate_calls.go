package transport

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

// change is what the calls that change one timer have in common.
type change interface {
	proto.Message
	GetNamespace() string
	GetId() string
	GetRequestId() string
	GetExpectedRevision() int64
}

func checkChange(message string, r change) error {
	if err := known(message, r); err != nil {
		return err
	}
	if err := checkKey(r.GetNamespace(), r.GetId()); err != nil {
		return err
	}
	if err := checkRequestID(r.GetRequestId()); err != nil {
		return err
	}
	return checkRevision(r.GetExpectedRevision())
}

// checkAtomic checks what must hold for all items of an atomic batch together.
func checkAtomic[T any](items []T, key func(T) (namespace, id string)) error {
	seen := make(map[string]bool, len(items))
	var space, tag string
	for i, item := range items {
		namespace, id := key(item)
		namespace = namespaceOf(namespace)
		if i == 0 {
			space, tag = namespace, carillonv1.HashTag(id)
		}
		switch {
		case namespace != space:
			return atItem(i, invalid("namespace", show(namespace), fmt.Sprintf("that of the first item, %s, in an atomic batch", show(space))))
		case carillonv1.HashTag(id) != tag:
			return atItem(i, invalid("id", show(id), fmt.Sprintf("the hash tag of the first item, {%s}, in an atomic batch", show(tag))))
		case seen[id]:
			return atItem(i, invalid("id", show(id), "IDs that differ in an atomic batch"))
		}
		seen[id] = true
	}
	return nil
}

func checkExplain(r *carillonv1.ExplainRequest) error {
	if err := known("ExplainRequest", r); err != nil {
		return err
	}
	return checkKey(r.Namespace, r.Id)
}

func checkCountCall(r *carillonv1.CountRequest) error {
	if err := known("CountRequest", r); err != nil {
		return err
	}
	if err := checkNamespace(r.Namespace); err != nil {
		return err
	}
	return checkPart("prefix", r.Prefix, raftfsm.MaxIDBytes)
}

// listedStates are the states that a filter may name.
var listedStates = []carillonv1.State{carillonv1.State_STATE_PENDING, carillonv1.State_STATE_FIRING, carillonv1.State_STATE_PAUSED}

// readFilter checks a filter; nil if it chooses all.
func readFilter(r *carillonv1.Filter) (*logv1.Filter, error) {
	if r == nil {
		return nil, nil
	}
	if err := known("Filter", r); err != nil {
		return nil, err
	}
	f := &logv1.Filter{Labels: sortedPairs(r.Labels), Queue: queueOf(r.Queue)}
	size := 0
	for _, label := range f.Labels {
		if size += len(label.Key) + len(label.Value); label.Key == "" {
			return nil, invalid("filter.labels", `""`, "keys must not be empty")
		}
		if err := checkText("filter.labels", label.Key+label.Value); err != nil {
			return nil, err
		}
	}
	if size > raftfsm.MaxAttributeBytes {
		return nil, invalid("filter.labels", byteCount(size), "at most "+byteCount(raftfsm.MaxAttributeBytes))
	}
	for i, state := range r.States {
		if !slices.Contains(listedStates, state) {
			return nil, invalid(fmt.Sprintf("filter.states[%d]", i), state.String(), "STATE_PENDING, STATE_FIRING or STATE_PAUSED")
		}
		if !slices.Contains(f.States, uint32(state)) {
			f.States = append(f.States, uint32(state))
		}
	}
	if err := checkPart("filter.queue", r.Queue, raftfsm.MaxQueueBytes); err != nil {
		return nil, err
	}
	if err := readDueRange(r, f); err != nil {
		return nil, err
	}
	if f.SizeVT() == 0 {
		return nil, nil
	}
	return f, nil
}

// readDueRange reads the bounds of a filter: both round up, since due times are whole milliseconds.
func readDueRange(r *carillonv1.Filter, f *logv1.Filter) (err error) {
	if r.DueFrom != nil {
		if f.FromMs, err = ceilMoment("filter.due_from", r.DueFrom); err != nil {
			return err
		}
		f.HasFrom = true
	}
	if r.DueBefore != nil {
		if f.BeforeMs, err = ceilMoment("filter.due_before", r.DueBefore); err != nil {
			return err
		}
		f.HasBefore = true
	}
	if f.HasFrom && f.HasBefore && f.BeforeMs < f.FromMs {
		return invalid("filter.due_before", showTime(r.DueBefore), "not before due_from")
	}
	return nil
}

// readExtends checks the extensions of leases; a lease of 0 means the timer's own.
func readExtends(field string, items []*carillonv1.Extend) (leases []int64, err error) {
	if err := checkCount(field, len(items)); err != nil {
		return nil, err
	}
	leases = make([]int64, len(items))
	for i, item := range items {
		if err := known("Extend", item); err != nil {
			return nil, err
		}
		if err := checkTokenSize(field, i, item.Token); err != nil {
			return nil, err
		}
		if item.Lease == nil {
			continue
		}
		leases[i], err = boundedMillis(field+".lease", item.Lease, raftfsm.MinLeaseMillis, raftfsm.MaxLeaseMillis, leaseLimit)
		if err != nil {
			return nil, err
		}
	}
	return leases, nil
}

func checkExtendLease(r *carillonv1.ExtendLeaseRequest) error { return known("ExtendLeaseRequest", r) }

// ofLetters is what the calls about dead letters have in common.
type ofLetters interface {
	proto.Message
	GetNamespace() string
	GetQueue() string
}

func checkLetters(message string, r ofLetters) error {
	if err := known(message, r); err != nil {
		return err
	}
	if err := checkNamespace(r.GetNamespace()); err != nil {
		return err
	}
	return checkPart("queue", r.GetQueue(), raftfsm.MaxQueueBytes)
}

func checkListDeadLetters(r *carillonv1.ListDeadLettersRequest) error {
	if err := checkLetters("ListDeadLettersRequest", r); err != nil {
		return err
	}
	return checkLimit(r.Limit)
}

func checkLimit(limit int32) error {
	if limit < 0 || limit > raftfsm.MaxPageItems {
		return invalid("limit", strconv.Itoa(int(limit)), fmt.Sprintf("0 to %d", raftfsm.MaxPageItems))
	}
	return nil
}

// letterKey names a dead letter: the shard, and the key that the shard gave it. As a cursor, with an empty key, it is
// the place before the shard's first letter.
type letterKey struct {
	shard int
	key   string
}

// maxKeyBytes is above the longest key of a dead letter.
const maxKeyBytes = 128

func (k letterKey) String() string { return fmt.Sprintf("%d-%s", k.shard, k.key) }

// readKey reads what String wrote; shards is the number of shards.
func readKey(field, s string, shards int) (letterKey, error) {
	number, key, ok := strings.Cut(s, "-")
	n, err := strconv.ParseUint(number, 10, 16)
	if !ok || err != nil || len(s) > maxKeyBytes || int(n) >= max(shards, 1) || checkPart(field, key, maxKeyBytes) != nil {
		return letterKey{}, invalid(field, show(s), "the key of a dead letter")
	}
	return letterKey{int(n), key}, nil
}

// readChosen reads which dead letters a call means: the keys of each shard; nil means all letters.
func readChosen(keys []string, queue, requestID string, shards int) (map[int][]string, error) {
	if err := checkRequestID(requestID); err != nil {
		return nil, err
	}
	if err := checkCount("keys", len(keys)); err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, nil
	}
	if queue != "" {
		return nil, invalid("queue", show(queue), "only without keys")
	}
	chosen := make(map[int][]string)
	seen := make(map[letterKey]bool, len(keys))
	for i, s := range keys {
		field := fmt.Sprintf("keys[%d]", i)
		key, err := readKey(field, s, shards)
		switch {
		case err != nil:
			return nil, err
		case key.key == "":
			return nil, invalid(field, show(s), "the key of a dead letter")
		case seen[key]:
			return nil, invalid(field, show(s), "keys that differ")
		}
		seen[key] = true
		chosen[key.shard] = append(chosen[key.shard], key.key)
	}
	return chosen, nil
}

// Limits of a forecast.
const (
	defaultForecastSteps = 60
	// forecastCells bounds the numbers of one answer, so that it fits into a message.
	forecastCells = 200_000
)

func readForecast(r *carillonv1.ForecastRequest, l limits) (raftfsm.ForecastQuery, error) {
	q := raftfsm.ForecastQuery{
		Namespace: r.Namespace, Queue: queueOf(r.Queue), From: l.now.UnixMilli(), Step: 60 * millisPerSecond, Steps: defaultForecastSteps,
	}
	if err := checkForecastNames(r); err != nil {
		return q, err
	}
	if d := r.Step; d != nil {
		if d.Nanos != 0 || d.Seconds != 1 && d.Seconds != 60 && d.Seconds != 3600 {
			return q, invalid("step", showSeconds(d.Seconds, d.Nanos), "1 s, 1 min or 1 h")
		}
		q.Step = d.Seconds * millisPerSecond
	}
	if r.Steps < 0 || r.Steps > raftfsm.MaxForecastSteps {
		return q, invalid("steps", strconv.Itoa(int(r.Steps)), fmt.Sprintf("0 to %d", raftfsm.MaxForecastSteps))
	}
	if r.Steps > 0 {
		q.Steps = int(r.Steps)
	}
	if r.From != nil {
		var err error
		if q.From, err = dueMillis("from", r.From, l.now); err != nil {
			return q, err
		}
	}
	q.From = floorTo(q.From, q.Step)
	q.Rows = min(raftfsm.MaxForecastRows, forecastCells/q.Steps)
	return q, nil
}

func checkForecastNames(r *carillonv1.ForecastRequest) error {
	if err := known("ForecastRequest", r); err != nil {
		return err
	}
	if err := checkNamespace(r.Namespace); err != nil {
		return err
	}
	return checkPart("queue", r.Queue, raftfsm.MaxQueueBytes)
}

// floorTo is the whole step at or before a time.
func floorTo(ms, step int64) int64 {
	rest := ms % step
	if rest < 0 {
		rest += step
	}
	return ms - rest
}
