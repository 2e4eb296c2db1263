package recur

import (
	"archive/zip"
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"math"
	"sort"
	"strings"
	"sync"
	"time"
)

//go:generate go run zonegen.go

// zoneData is the IANA time zone database as the Go distribution has it, in its zip format.
//
//go:embed zoneinfo.zip
var zoneData []byte

//go:embed zoneversion.txt
var zoneVersion string

// ZoneVersion is the release of the embedded IANA time zone database, as "2025c".
func ZoneVersion() string { return strings.TrimSpace(zoneVersion) }

// zoneFiles are the files of the embedded database, by zone: a constant that is worked out when it is first needed.
var zoneFiles = sync.OnceValue(func() map[string]*zip.File {
	archive, err := zip.NewReader(bytes.NewReader(zoneData), int64(len(zoneData)))
	if err != nil {
		panic(fmt.Sprintf("the embedded time zones are damaged: %v", err))
	}
	files := make(map[string]*zip.File, len(archive.File))
	for _, f := range archive.File {
		if !strings.HasSuffix(f.Name, "/") {
			files[f.Name] = f
		}
	}
	return files
})

// loadedZones holds each *Zone that was asked for once, by its name: immutable, and at most as many as there are zones.
var loadedZones sync.Map

// Zone is a time zone. It is immutable.
type Zone struct {
	location *time.Location
	// spans follow each other without a gap, for the years that are asked for; package time, which works the rules of a
	// zone out again for each question, knows the others.
	spans []span
}

// LoadZone finds a zone of the embedded database by its IANA name; an empty name is UTC. What the machine knows of time
// zones does not count, so "Local" is refused. Errors are of type *Error.
func LoadZone(name string) (*Zone, error) {
	if name == "" {
		name = "UTC"
	}
	if z, ok := loadedZones.Load(name); ok {
		return z.(*Zone), nil
	}
	f, ok := zoneFiles()[name]
	if !ok {
		limit := "the name of an IANA time zone, as Europe/Berlin or UTC"
		if name == "Local" {
			limit += "; the zone of a machine is none"
		}
		return nil, &Error{"zone", name, limit}
	}
	location, err := readZone(name, f)
	if err != nil {
		panic(fmt.Sprintf("the embedded time zone %s is damaged: %v", name, err))
	}
	z, _ := loadedZones.LoadOrStore(name, newZone(location))
	return z.(*Zone), nil
}

func readZone(name string, f *zip.File) (*time.Location, error) {
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	return time.LoadLocationFromTZData(name, data)
}

// Name is the IANA name.
func (z *Zone) Name() string { return z.location.String() }

// span is a time in which a zone's offset does not change; seconds since 1970, the end not included.
type span struct {
	start, end int64
	offset     int64 // seconds east of UTC
}

// lookBack is longer than two clocks of one zone can differ: offsets lie within 16 hours of UTC.
const lookBack = 2 * secondsPerDay

// The years of Zone.spans.
const (
	firstSpanYear = 2020
	lastSpanYear  = 2140
)

func newZone(location *time.Location) *Zone {
	z := &Zone{location: location}
	until := daysBefore(lastSpanYear+1, 1) * secondsPerDay
	for t := daysBefore(firstSpanYear, 1) * secondsPerDay; t < until; {
		s := z.lookUp(t)
		if last := len(z.spans) - 1; last >= 0 && z.spans[last].offset == s.offset {
			z.spans[last].end = s.end
		} else {
			z.spans = append(z.spans, s)
		}
		t = s.end
	}
	return z
}

// at returns a span that holds t. It may be a part of a longer one.
func (z *Zone) at(t int64) span {
	if n := len(z.spans); n > 0 && t >= z.spans[0].start && t < z.spans[n-1].end {
		i := sort.Search(n, func(i int) bool { return z.spans[i].end > t })
		return z.spans[i]
	}
	return z.lookUp(t)
}

// lookUp is at without the table.
func (z *Zone) lookUp(t int64) span {
	moment := time.Unix(t, 0).In(z.location)
	_, offset := moment.Zone()
	s := span{math.MinInt64, math.MaxInt64, int64(offset)}
	start, end := moment.ZoneBounds()
	if !start.IsZero() {
		s.start = start.Unix()
	}
	if !end.IsZero() {
		s.end = end.Unix()
	}
	if s.end <= t { // beyond its table, package time takes each year for 365 days long
		s.end = daysBefore(moment.UTC().Year()+1, 1) * secondsPerDay
	}
	return s
}

// reached returns the latest local time that the clock on the wall has shown until t, t included.
func (z *Zone) reached(t int64) int64 {
	s := z.at(t)
	local := t + s.offset
	for s.start > t-lookBack {
		end := s.start
		s = z.at(end - 1)
		local = max(local, end-1+s.offset)
	}
	return local
}

// first returns the first instant at which the clock on the wall shows the local time or, if that is skipped, a later
// one.
func (z *Zone) first(local int64) int64 {
	for t := local - secondsPerDay; ; {
		s := z.at(t)
		at := local - s.offset
		if at <= t { // the clock went over it
			return t
		}
		if at < s.end {
			return at
		}
		t = s.end
	}
}

// nextCron returns the first due time after an instant, both in seconds since 1970.
func (r *Rule) nextCron(after int64) (int64, bool) {
	if r.cron.starHour {
		return r.nextReal(after)
	}
	// A local time is due at the first instant at which the clock has reached it: that grows with the local time. So the
	// first one that the clock has not reached yet is the next to be due.
	local, ok := r.cron.next(r.zone.reached(after) + 1)
	if !ok {
		return 0, false
	}
	return r.zone.first(local), true
}

// nextReal follows real time: each instant whose local time matches is due.
func (r *Rule) nextReal(after int64) (int64, bool) {
	for t := after + 1; ; {
		s := r.zone.at(t)
		local, ok := r.cron.next(t + s.offset)
		if !ok {
			return 0, false
		}
		if at := local - s.offset; at < s.end {
			return at, true
		}
		// In what follows the clock may show times before t's again, but no more after two days: then no match comes
		// before local.
		if far := s.end-t >= lookBack; far {
			t = max(s.end, local-secondsPerDay)
		} else {
			t = s.end
		}
	}
}
