package segment

import (
	"errors"
	"fmt"
)

var (
	// ErrKeyNotFound is returned for a key that was never set. Raft compares its text.
	ErrKeyNotFound = errors.New("not found")
	// ErrClosed is returned by what is asked of a log that runs no more. A write that gets it was not written.
	ErrClosed = errors.New("the segment log is closed")
	// ErrTooLarge is returned for an entry or a value that does not fit into a segment. Nothing was written.
	ErrTooLarge = errors.New("does not fit into a segment")
)

// DamagedError says that the files of the log are not what was written, and that it cannot be told whom that concerns: all
// groups of the log are lost.
type DamagedError struct {
	Path  string
	Cause error
}

func (e *DamagedError) Error() string { return fmt.Sprintf("%s is damaged: %v", e.Path, e.Cause) }

// Unwrap returns the cause.
func (e *DamagedError) Unwrap() error { return e.Cause }

// LostError says that records of one group are damaged, or that it cannot be proven that none is. The group answers
// nothing else until Forget: its replica must not vote again under its ID.
type LostError struct {
	Group uint32
	Cause error
}

func (e *LostError) Error() string {
	return fmt.Sprintf("the log of group %d is damaged: %v", e.Group, e.Cause)
}

// Unwrap returns the cause.
func (e *LostError) Unwrap() error { return e.Cause }

// WriteError says that a write or a flush has failed. What the disk holds of it is not known, and a second flush would not
// tell (the kernel drops the pages), so nothing is written any more: the process is to end.
type WriteError struct {
	Op    string
	Cause error
}

func (e *WriteError) Error() string { return fmt.Sprintf("segment log: %s: %v", e.Op, e.Cause) }

// Unwrap returns the cause.
func (e *WriteError) Unwrap() error { return e.Cause }

// RoomError says that a new segment could not be made, most often because the disk is full. Nothing was written and the log
// is whole; the next write tries again.
type RoomError struct{ Cause error }

func (e *RoomError) Error() string { return fmt.Sprintf("segment log: make a segment: %v", e.Cause) }

// Unwrap returns the cause.
func (e *RoomError) Unwrap() error { return e.Cause }
