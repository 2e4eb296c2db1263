package peer

import "time"

// now is the present for deadlines, back-off and rates. They are compared with the deadlines of sockets, which the
// runtime keeps by the real clock: a node's own clock, which may be skewed on purpose, must not reach them.
func now() time.Time { return time.Now() }
