// Package recur says when something that repeats is due: every so often, or by a cron expression in a time zone. It is
// pure: it reads no clock, no file of the machine and no environment, and the same binary gives the same answers on
// every machine, since the time zones are embedded (ZoneVersion).
//
// Invariants:
//  1. What Cron, Every and LoadZone accept has a next due time, and what they refuse is an *Error that names the field.
//  2. Series.Next returns a time that is later than the one it was given, or nothing, for any int64.
//  3. No call panics on its arguments, and each ends in bounded time, however seldom the rule matches.
//  4. Turn never fires a due time twice, and what is armed after it lies on the same grid as before.
//
// A Rule is immutable: any number of goroutines may use it. Nothing here starts a goroutine.
package recur
