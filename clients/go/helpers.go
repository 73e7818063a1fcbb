package quorate

import (
	"context"
	"errors"
)

// WithLock runs a function under a lock. The function's context ends when the lease is lost; then the error is a
// *LostError, joined with the function's own.
func (c *Client) WithLock(
	ctx context.Context, name string, run func(context.Context, *Lease) error, options ...Option,
) error {
	return c.WithLocks(ctx, []string{name}, run, options...)
}

// WithLocks runs a function under all of these locks.
func (c *Client) WithLocks(
	ctx context.Context, names []string, run func(context.Context, *Lease) error, options ...Option,
) error {
	lease, err := c.Locks(ctx, names, options...)
	if err != nil {
		return err
	}
	return within(lease, run)
}

// TryWithLock runs a function under a lock if nobody else has it, and returns whether it did. That this cannot be known
// is an error.
func (c *Client) TryWithLock(
	ctx context.Context, name string, run func(context.Context, *Lease) error, options ...Option,
) (bool, error) {
	lease, err := c.Lock(ctx, name, append([]Option{Wait(0)}, options...)...)
	if _, held := err.(*HeldError); held {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, within(lease, run)
}

// within runs a function, and releases the lease however it ends. Its own error comes first.
func within(lease *Lease, run func(context.Context, *Lease) error) (err error) {
	returned := false
	defer func() {
		released := lease.Release()
		if !returned {
			return // It panics, and goes on to do so.
		}
		switch ended := errors.Is(err, context.Canceled) && context.Cause(lease.ctx) == released; {
		case released == nil:
		case err == nil || ended || errors.Is(err, released):
			err = released
		default:
			err = errors.Join(err, released)
		}
	}()
	err = run(lease.Context(), lease)
	returned = true
	return err
}

// Outcome says what became of an event that Idempotent was called for.
type Outcome string

const (
	Processed        Outcome = "processed"         // It was processed by this call.
	AlreadyProcessed Outcome = "already_processed" // It had been processed before.
	Duplicate        Outcome = "duplicate"         // Somebody is processing it at this moment.
)

// Idempotent processes an event once, however often it is delivered, such as a webhook or a message. The mark of what
// was processed lives where its effect lives: process should write both in one transaction, with the lease's token,
// and done looks for the mark. A failure leaves no mark, so that the next delivery processes the event.
func (c *Client) Idempotent(
	ctx context.Context, event string, done func(context.Context) (bool, error),
	process func(context.Context, *Lease) error, options ...Option,
) (Outcome, error) {
	outcome := Processed
	ran, err := c.TryWithLock(ctx, event, func(ctx context.Context, lease *Lease) error {
		known, err := done(ctx)
		if err != nil {
			return err
		}
		if known {
			outcome = AlreadyProcessed
			return nil
		}
		return process(ctx, lease)
	}, options...)
	if err != nil {
		return "", err
	}
	if !ran {
		return Duplicate, nil
	}
	return outcome, nil
}
