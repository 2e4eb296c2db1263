package raftfsm

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// Values of Repeat.misfire and Repeat.overlap, as in carillon.v1.
const (
	misfireOne   = 1
	misfireNone  = 2
	misfireAll   = 3
	overlapSkip  = 1
	overlapOne   = 2
	overlapAllow = 3
)

// Reasons in Dead.reason, as in carillon.v1.
const (
	deadAttempts = 1
	deadRefused  = 2
)

// maxFailures is how many failed attempts are kept with a timer, maxFailureBytes how much of what each said.
const (
	maxFailures     = 8
	maxFailureBytes = 256
)

// decodeExtra reads what appendExtra wrote; nil if there is nothing.
func decodeExtra(b []byte) *logv1.Extra {
	if len(b) == 0 {
		return nil
	}
	x := &logv1.Extra{}
	if err := x.UnmarshalVT(b); err != nil {
		panic(fmt.Sprintf("raftfsm: the extra part of a timer cannot be read: %v", err))
	}
	return x
}

// encodeExtra is the one form in which an Extra lies in a blob; nil if there is nothing in it.
func encodeExtra(x *logv1.Extra) []byte {
	if x == nil || x.SizeVT() == 0 {
		return nil
	}
	b, err := x.MarshalVT()
	if err != nil {
		panic(fmt.Sprintf("raftfsm: the extra part of a timer cannot be written: %v", err))
	}
	return b
}

// more is what the body has beside what all have; nil if there is nothing. It shares no memory with the body.
func (c *body) more() *logv1.Extra { return decodeExtra(c.extra) }

// glance is what is looked at of an Extra for each delivery.
type glance struct {
	expiry     int64
	atMostOnce bool
	// repeat is that part of the bytes, spawns says that its overlap is allow, fired that due times of it were settled.
	repeat        []byte
	spawns, fired bool
}

// glanceAt reads a few fields without making messages.
func glanceAt(b []byte) (g glance) {
	eachField(b, func(field, value uint64, bytes []byte) {
		switch field {
		case 1:
			g.repeat = bytes
		case 2:
			g.expiry = int64(value)
		case 3:
			g.atMostOnce = value != 0
		}
	})
	eachField(g.repeat, func(field, value uint64, _ []byte) {
		switch field {
		case 12:
			g.spawns = value == overlapAllow
		case 21:
			g.fired = value > 0
		}
	})
	return g
}

// eachField calls f for each field of a message that MarshalVT wrote, which has numbers and bytes only.
func eachField(b []byte, f func(field, value uint64, bytes []byte)) {
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		b = b[n:]
		value, n := binary.Uvarint(b)
		b = b[n:]
		var bytes []byte
		if tag&7 == wireBytes {
			bytes, b = b[:value], b[value:]
		}
		f(tag>>3, value, bytes)
	}
}

// glance looks at the extra part of a record; most have none, and cost no look at the blob.
func (v *view) glance(r *record) glance {
	if !v.profiles[r.profile].extra {
		return glance{}
	}
	c := v.body(r)
	return glanceAt(c.extra)
}

// hashTag is the part of an ID that is hashed to find its shard, by the rule of carillon.v1.
func hashTag(id string) string {
	open := strings.IndexByte(id, '{')
	if open < 0 {
		return id
	}
	length := strings.IndexByte(id[open+1:], '}')
	if length <= 0 {
		return id
	}
	return id[open+1 : open+1+length]
}

// childID is the ID of the timer that one due time of a repeat becomes. It belongs to the same shard; if there is no such ID, the
// result says why.
func childID(id string, due int64) (string, *Result) {
	child := id + "@" + strconv.FormatInt(due, 10)
	if hashTag(id) == id {
		child = "{" + id + "}@" + strconv.FormatInt(due, 10)
	}
	switch {
	case len(child) > MaxIDBytes:
		return "", invalid("id", "with a due time behind it it has %d bytes; at most %d are allowed", len(child), MaxIDBytes)
	case hashTag(child) != hashTag(id):
		return "", invalid("id", "braces without a hash tag: a due time could not be a timer on the same shard")
	}
	return child, nil
}

// cloneRepeat is a copy that may be changed.
func cloneRepeat(r *logv1.Repeat) *logv1.Repeat {
	return &logv1.Repeat{
		EveryMs: r.EveryMs, Cron: r.Cron, Zone: r.Zone, FixedDelay: r.FixedDelay, StartMs: r.StartMs, HasEnd: r.HasEnd, EndMs: r.EndMs,
		MaxCount: r.MaxCount, Misfire: r.Misfire, MaxCatchUp: r.MaxCatchUp, MaxLateMs: r.MaxLateMs, Overlap: r.Overlap,
		TickMs: r.TickMs, Fired: r.Fired, BacklogMs: r.BacklogMs,
	}
}
