package client

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// Repeat says when something is due again and again: exactly one of Every and Cron is set. The zero value is no repeat.
type Repeat struct {
	// Every is a fixed period of whole milliseconds, 1 ms to 100 years: due at Start, Start + Every, Start + 2 Every, ...
	// Without a Start it counts from the first due time.
	Every time.Duration
	// Cron is an expression of five fields, of six with seconds in front, a macro as @daily, or @every with a duration.
	// If its hour field begins with "*" it follows real time, else the clock on the wall: local times that a change of the
	// clock skips are due once, together, right afterwards; a local time that occurs twice is due the first time.
	Cron string
	// Zone is the IANA name of the time zone that Cron follows; empty means UTC.
	Zone string
	// FixedDelay counts Every from the ack of one delivery to the next due time.
	FixedDelay bool
	// Start, if set, is the earliest due time; End the latest, not before Start.
	Start, End time.Time
	// MaxCount ends the repeat after so many due times that were fired; 0 means no limit.
	MaxCount int64
	// Misfire says what becomes of due times that passed while nobody could fire or take them; MisfireOne by default.
	Misfire Misfire
	// MaxCatchUp is for MisfireAll: the newest so many are fired, 1 to 1,000; 0 means 1.
	MaxCatchUp int
	// MaxLateness drops due times that are later than that; 0 means no bound (of MisfireNone 1 s).
	MaxLateness time.Duration
	// Overlap says what becomes of a due time that comes while the delivery before is not settled; OverlapSkip by default.
	Overlap Overlap
}

// Misfire is the policy for due times that passed while nobody could fire or take them. Afterwards a repeat is back on
// its grid.
type Misfire int32

// The policies; the zero value is MisfireOne.
const (
	// MisfireOne fires once for all that were missed: the newest of them.
	MisfireOne = Misfire(carillonv1.Misfire_MISFIRE_ONE)
	// MisfireNone fires nothing that is more than MaxLateness late.
	MisfireNone = Misfire(carillonv1.Misfire_MISFIRE_NONE)
	// MisfireAll fires each that was missed, one after the other, but no more than the newest MaxCatchUp.
	MisfireAll = Misfire(carillonv1.Misfire_MISFIRE_ALL)
)

func (m Misfire) String() string {
	switch m {
	case 0, MisfireOne:
		return "one"
	case MisfireNone:
		return "none"
	case MisfireAll:
		return "all"
	}
	return fmt.Sprintf("misfire(%d)", int32(m))
}

// Overlap is the policy for a due time that comes while the delivery of the one before is not settled.
type Overlap int32

// The policies; the zero value is OverlapSkip.
const (
	// OverlapSkip drops it.
	OverlapSkip = Overlap(carillonv1.Overlap_OVERLAP_SKIP)
	// OverlapOne keeps the newest and fires it when the delivery before is settled.
	OverlapOne = Overlap(carillonv1.Overlap_OVERLAP_ONE)
	// OverlapAllow makes each due time a timer of its own, with the ID "ID@MILLIS" if the ID has a hash tag, else
	// "{ID}@MILLIS": Unix milliseconds of the due time.
	OverlapAllow = Overlap(carillonv1.Overlap_OVERLAP_ALLOW)
)

func (o Overlap) String() string {
	switch o {
	case 0, OverlapSkip:
		return "skip"
	case OverlapOne:
		return "one"
	case OverlapAllow:
		return "allow"
	}
	return fmt.Sprintf("overlap(%d)", int32(o))
}

// set says whether there is a repeat at all.
func (r Repeat) set() bool { return r != Repeat{} }

// check finds what the message could not carry; the server checks the rest.
func (r Repeat) check() error {
	switch {
	case r.Every == 0 && r.Cron == "":
		return &InvalidError{"repeat", "", "every or cron must be set"}
	case r.Every != 0 && r.Cron != "":
		return &InvalidError{"every", r.Every.String(), "must not be set beside cron"}
	}
	if err := checkText("cron", r.Cron, 0, maxCronBytes); err != nil {
		return err
	}
	return checkText("zone", r.Zone, 0, maxZoneBytes)
}

func (r Repeat) proto() *carillonv1.Repeat {
	pb := &carillonv1.Repeat{
		Zone: r.Zone, FixedDelay: r.FixedDelay, Start: optionalTime(r.Start), End: optionalTime(r.End), MaxCount: r.MaxCount,
		Misfire: carillonv1.Misfire(r.Misfire), MaxCatchUp: int32Of(r.MaxCatchUp), MaxLateness: optional(r.MaxLateness),
		Overlap: carillonv1.Overlap(r.Overlap),
	}
	if r.Cron != "" {
		pb.Rule = &carillonv1.Repeat_Cron{Cron: r.Cron}
	} else {
		pb.Rule = &carillonv1.Repeat_Every{Every: durationpb.New(r.Every)}
	}
	return pb
}

func repeatOf(pb *carillonv1.Repeat) Repeat {
	if pb == nil {
		return Repeat{}
	}
	return Repeat{
		Every: pb.GetEvery().AsDuration(), Cron: pb.GetCron(), Zone: pb.GetZone(), FixedDelay: pb.GetFixedDelay(),
		Start: timeOf(pb.GetStart()), End: timeOf(pb.GetEnd()), MaxCount: pb.GetMaxCount(),
		Misfire: Misfire(pb.GetMisfire()), MaxCatchUp: int(pb.GetMaxCatchUp()), MaxLateness: pb.GetMaxLateness().AsDuration(),
		Overlap: Overlap(pb.GetOverlap()),
	}
}

// optionalTime leaves the field of a zero time unset.
func optionalTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// int32Of keeps a number that is too large too large: the server refuses it.
func int32Of(n int) int32 { return int32(min(max(n, math.MinInt32), math.MaxInt32)) }
