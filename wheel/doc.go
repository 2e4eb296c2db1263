// Package wheel is a hierarchical timing wheel: it keeps timers by their due tick and gives them back in order when
// time has come to them. It has no goroutine, no lock and no clock; time comes in through Advance.
//
// Invariants, all verified by Check but the first three, which the model test verifies:
//
//  1. No entry leaves before its When.
//  2. Entries leave in the order of When, then of insertion (Add or Move), so two wheels given the same calls give the
//     same order.
//  3. Now never goes back: an Advance to an earlier tick changes nothing but to emit what is already due.
//  4. Each entry has exactly one valid element, in exactly one list; all other elements are stale and are dropped when they are met.
//  5. A slot's bit is set if and only if the slot holds elements.
//  6. Level l holds the ticks from the end of level l-1's range to the end of its own.
//  7. Len is the number of entries.
//
// Threads: a Wheel is used by one goroutine at a time; the caller sees to that.
package wheel
