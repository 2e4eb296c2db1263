// Package webhook delivers timers whose target is a webhook: it takes them from the ready lists, posts each to its URL and
// settles it by what the receiver answers.
//
// Invariants: a request goes to an address that was checked, never to a name that is looked up again; no host waits for
// another; what is taken is posted at once, so no lease runs while a delivery waits here; a delivery that can be settled is
// settled once. See DESIGN.md.
package webhook
