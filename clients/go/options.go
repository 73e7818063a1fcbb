package quorate

import (
	"fmt"
	"time"
)

const electionTTL = 10 * time.Second

// Option says how something is acquired.
type Option func(*settings)

type settings struct {
	fields    map[string]any
	durations map[string]time.Duration
	wait      time.Duration
	maxHold   time.Duration
}

// TTL is how long the lease lasts when its process dies; while it lives, the lease is renewed. The default is the
// server's, 30 s, and 10 s for elections.
func TTL(ttl time.Duration) Option {
	return func(s *settings) { s.durations["ttl_ms"] = ttl }
}

// Wait is how long to wait for the lease: 0 is one attempt. Without it the wait ends with the context.
func Wait(limit time.Duration) Option {
	return func(s *settings) { s.wait = limit }
}

// Owner is the label that others see.
func Owner(label string) Option {
	return func(s *settings) { s.fields["owner"] = label }
}

// Metadata is shown with the owner.
func Metadata(metadata map[string]string) Option {
	return func(s *settings) { s.fields["metadata"] = metadata }
}

// Shared asks for a lease that any number can have at once, if all of them ask for a shared one. For locks.
func Shared() Option {
	return func(s *settings) { s.fields["mode"] = "shared" }
}

// MaxHold ends the lease so long after it was acquired, however often it is renewed.
func MaxHold(limit time.Duration) Option {
	return func(s *settings) { s.durations["max_hold_ms"], s.maxHold = limit, limit }
}

// LockDelay keeps the name taken for so much longer where the lease is not released but expires.
func LockDelay(delay time.Duration) Option {
	return func(s *settings) { s.durations["lock_delay_ms"] = delay }
}

// Permits is how many permits of a semaphore are acquired; the default is 1.
func Permits(permits int) Option {
	return func(s *settings) { s.fields["permits"] = permits }
}

// Value is what a leader tells all observers, such as its address. For elections.
func Value(value string) Option {
	return func(s *settings) { s.fields["value"] = value }
}

// wanted is what one acquisition asks for.
type wanted struct {
	target  target
	fields  map[string]any
	wait    time.Duration // never: as long as it takes
	maxHold time.Duration // never: without a limit
}

// want checks what can be checked here: the server does the rest.
func (c *Client) want(fields map[string]any, options []Option, primitive string, names ...string) (wanted, error) {
	target, err := newTarget(primitive, names...)
	if err != nil {
		return wanted{}, err
	}
	given := settings{fields: fields, durations: map[string]time.Duration{}, wait: never, maxHold: never}
	if primitive == "election" {
		given.durations["ttl_ms"] = electionTTL
	} else if c.owner != "" {
		given.fields["owner"] = c.owner
	}
	for _, option := range options {
		option(&given)
	}
	if given.wait < 0 {
		return wanted{}, invalid("wait", fmt.Sprintf("%s is less than 0", given.wait))
	}
	for field, length := range given.durations {
		// A fraction of a millisecond would be another length than the one that was asked for.
		if length < 0 || length%time.Millisecond != 0 {
			return wanted{}, invalid(field, fmt.Sprintf("%s is not a whole number of milliseconds", length))
		}
		given.fields[field] = length.Milliseconds()
	}
	return wanted{target, given.fields, given.wait, given.maxHold}, nil
}
