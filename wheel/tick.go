package wheel

// Tick is a Unix time in milliseconds.
type Tick int64
