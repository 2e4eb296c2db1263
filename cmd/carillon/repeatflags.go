package main

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/carillon-timers/carillon/client"
)

// ruleFlags say what is repeated; preview and schedule share them.
type ruleFlags struct {
	cron, zone, start, end string
	every                  time.Duration
	fixedDelay             bool
}

func (r *ruleFlags) flags(f *pflag.FlagSet, startDefault string) {
	spanVar(f, &r.every, "every", "repeat each `time`, to the millisecond: 1500ms, 5s, 1h30m, 2d, 1w")
	f.BoolVar(&r.fixedDelay, "fixed-delay", false, "count --every from the ack of the delivery before, not from its due time")
	f.StringVar(&r.cron, "cron", "", "repeat by a cron `expression`: \"0 9 * * 1-5\", @daily")
	f.StringVar(&r.zone, "zone", "", "the IANA time `zone` of --cron: Europe/Berlin (default UTC)")
	f.StringVar(&r.start, "start", "", "the earliest `instant`, RFC 3339 or a time from now; --every counts from it (default "+startDefault+")")
	f.StringVar(&r.end, "end", "", "the latest `instant`, RFC 3339 or a time from now")
}

// rule is the repeat that the flags say; the zero value if they say none.
func (r *ruleFlags) rule(f *pflag.FlagSet, now time.Time) (rule client.Repeat, err error) {
	cron, every := f.Changed("cron"), f.Changed("every")
	switch {
	case cron && every:
		return rule, usagef("--cron %s and --every %s: only one can be given", r.cron, spanText(r.every))
	case cron && r.cron == "":
		return rule, usagef("--cron must not be empty")
	case every && r.every <= 0:
		return rule, usagef("--every %s is not valid: must be positive", r.every)
	case f.Changed("zone") && !cron:
		return rule, usagef("--zone goes with --cron")
	case r.fixedDelay && !every:
		return rule, usagef("--fixed-delay goes with --every")
	}
	rule = client.Repeat{Cron: r.cron, Every: r.every, Zone: r.zone, FixedDelay: r.fixedDelay}
	if rule.Start, err = parseInstant("start", r.start, now); err != nil {
		return rule, err
	}
	rule.End, err = parseInstant("end", r.end, now)
	return rule, err
}

// repeatFlags are the flags of a repeat that is scheduled.
type repeatFlags struct {
	ruleFlags
	misfire, overlap string
	count            int64
	catchUp          int
	maxLate          time.Duration
}

func (r *repeatFlags) flags(f *pflag.FlagSet) {
	r.ruleFlags.flags(f, "the first due time")
	f.Int64Var(&r.count, "count", 0, "end the repeat after this `number` of due times that were fired (default no limit)")
	f.StringVar(&r.misfire, "misfire", "one", "`what` to do about due times that passed while nobody could fire or take them:\n"+
		"one fires the newest, none drops them, all fires the newest --catch-up")
	f.IntVar(&r.catchUp, "catch-up", 1, "with --misfire all: fire the newest `number` that were missed, 1 to 1000")
	spanVar(f, &r.maxLate, "max-late", "drop due times that are later than this `time` (default no bound; 1s with --misfire none)")
	f.StringVar(&r.overlap, "overlap", "skip", "`what` to do about a due time while the delivery before is not settled:\n"+
		"skip drops it, one keeps the newest for afterwards, allow makes each a timer of its own")
}

// repeat is what the flags say; the zero value if there is no --every and no --cron.
func (r *repeatFlags) repeat(f *pflag.FlagSet, now time.Time) (rule client.Repeat, err error) {
	if rule, err = r.rule(f, now); err != nil {
		return rule, err
	}
	if !f.Changed("cron") && !f.Changed("every") {
		for _, name := range []string{"start", "end", "count", "misfire", "catch-up", "max-late", "overlap"} {
			if f.Changed(name) {
				return rule, usagef("--%s goes with --every or --cron", name)
			}
		}
		return client.Repeat{}, nil
	}
	switch {
	case r.count < 0:
		return rule, usagef("--count %d is not valid: must not be negative", r.count)
	case f.Changed("catch-up") && r.misfire != "all":
		return rule, usagef("--catch-up goes with --misfire all")
	case r.catchUp < 1 || r.catchUp > 1000:
		return rule, usagef("--catch-up %d is not valid: 1 to 1000", r.catchUp)
	case f.Changed("max-late") && r.maxLate <= 0:
		return rule, usagef("--max-late %s is not valid: must be positive", r.maxLate)
	}
	rule.MaxCount, rule.MaxLateness = r.count, r.maxLate
	if r.misfire == "all" {
		rule.MaxCatchUp = r.catchUp
	}
	rule.Misfire, err = oneOf("misfire", r.misfire, []string{"one", "none", "all"},
		[]client.Misfire{client.MisfireOne, client.MisfireNone, client.MisfireAll})
	if err != nil {
		return rule, err
	}
	rule.Overlap, err = oneOf("overlap", r.overlap, []string{"skip", "one", "allow"},
		[]client.Overlap{client.OverlapSkip, client.OverlapOne, client.OverlapAllow})
	return rule, err
}
