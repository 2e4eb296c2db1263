package raftfsm

// Limits of what one shard takes. Reaching one is an error that names the field, the value and the limit.
const (
	// MaxNamespaceBytes bounds a namespace: 1 to 63 bytes of [a-z0-9-].
	MaxNamespaceBytes = 63
	// MaxIDBytes bounds a timer ID: 1 to 255 bytes of UTF-8 without NUL.
	MaxIDBytes = 255
	// MaxQueueBytes bounds the name of a queue: 1 to 255 bytes of UTF-8 without NUL.
	MaxQueueBytes = 255
	// MaxWebhookBytes bounds the URL of a webhook, MaxCronBytes an expression and the name of a zone.
	MaxWebhookBytes = 2048
	MaxCronBytes    = 256
	// MaxRequestIDBytes bounds a request ID.
	MaxRequestIDBytes = 64
	// DefaultPayloadBytes is the default limit of a payload, MaxPayloadBytes the highest that can be configured.
	DefaultPayloadBytes = 64 << 10
	MaxPayloadBytes     = 512 << 10
	// MaxAttributeBytes bounds headers, labels and content type together.
	MaxAttributeBytes = 8 << 10
	// MaxErrorBytes bounds the error text that is kept with a timer; longer text is cut.
	MaxErrorBytes = 1 << 10
	// MaxAheadMillis is how far ahead a timer may be due: 100 years of 365.25 days.
	MaxAheadMillis = 36525 * 24 * 3600 * 1000
	// MaxWindowMillis bounds a window, MaxCatchUp the due times that a repeat catches up with, MaxAttempts those of a retry policy.
	MaxWindowMillis = 24 * 3600 * 1000
	MaxCatchUp      = 1000
	MaxAttempts     = 1_000_000
	// MaxBatchItems and MaxBatchBytes bound a batch call.
	MaxBatchItems = 1000
	MaxBatchBytes = 1 << 20
	// MaxEntryCommands and MaxEntryBytes bound what is joined into one log entry; a larger single command travels alone.
	MaxEntryCommands = 1000
	MaxEntryBytes    = 256 << 10
	// MaxPageItems and MaxPageBytes bound a page of a list.
	MaxPageItems = 1000
	MaxPageBytes = 1 << 20

	// MaxLook is how many timers a page or a count looks at.
	MaxLook = 20_000
	// MaxForecastSteps and MaxForecastRows bound a forecast; what is in no row of its own is in the last one, without names.
	MaxForecastSteps = 3600
	MaxForecastRows  = 1000

	// MinLeaseMillis and MaxLeaseMillis bound a lease, MaxBackoffMillis a back-off.
	MinLeaseMillis   = 100
	MaxLeaseMillis   = 24 * 3600 * 1000
	MaxBackoffMillis = 24 * 3600 * 1000

	// Defaults of a retry policy.
	DefaultLeaseMillis          = 30_000
	DefaultInitialBackoffMillis = 1_000
	DefaultMaxBackoffMillis     = 300_000
	DefaultMultiplier           = 2.0

	// DefaultNamespace is meant by an empty namespace.
	DefaultNamespace = "default"
)
