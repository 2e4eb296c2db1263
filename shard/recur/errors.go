package recur

import (
	"fmt"
	"strconv"
)

// Error says which field of a rule is not valid: "cron", "zone" or "every".
type Error struct {
	Field string
	// Value is what was given, as it came: it may be long and may be no text.
	Value string
	// Limit says what would be right.
	Limit string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s is not valid: %s", e.Field, quote(e.Value), e.Limit)
}

// maxQuotedBytes cuts what an error repeats.
const maxQuotedBytes = 40

func quote(s string) string {
	if len(s) > maxQuotedBytes {
		return strconv.QuoteToASCII(s[:maxQuotedBytes]) + "..."
	}
	return strconv.QuoteToASCII(s)
}
