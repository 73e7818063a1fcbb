package quorate

import (
	"context"
	"iter"
	"net/url"
	"strconv"
	"time"

	"example.com/quorate/clients/go/api"
)

// Lead runs a function whenever this candidate is elected. When the leadership is lost, the function's context ends: it
// has to return soon then, and the candidate stands again. When the function returns by itself, the candidate resigns,
// and Lead returns its error. To stop it, cancel the context.
func (c *Client) Lead(
	ctx context.Context, election, candidate string, run func(context.Context, *Leadership) error, options ...Option,
) error {
	want, err := c.want(map[string]any{"candidate": candidate}, options, "election", election)
	if err != nil {
		return err
	}
	return c.again(ctx, want, func(ctx context.Context, lease *Lease) error { return run(ctx, &Leadership{lease}) })
}

// LeadWithHooks is Lead for work that goes on elsewhere: became is called when this candidate is elected, and lost when
// that is over, before it resigns. They are called in turn, with the term. It returns when the context ends.
func (c *Client) LeadWithHooks(
	ctx context.Context, election, candidate string, became, lost func(term int64), options ...Option,
) error {
	return c.Lead(ctx, election, candidate, func(ctx context.Context, leadership *Leadership) error {
		became(leadership.Term())
		defer lost(leadership.Term())
		<-ctx.Done()
		return ctx.Err()
	}, options...)
}

// Singleton runs a function in one process at a time: the others stand by, and one of them takes over when it is gone.
// It runs again after its lease was lost, and returns when the function returns by itself or the context ends.
func (c *Client) Singleton(
	ctx context.Context, name string, run func(context.Context, *Lease) error, options ...Option,
) error {
	want, err := c.want(map[string]any{}, options, "lock", name)
	if err != nil {
		return err
	}
	return c.again(ctx, want, run)
}

// again waits without limit, runs, releases, and begins anew after a loss.
func (c *Client) again(ctx context.Context, want wanted, run func(context.Context, *Lease) error) error {
	want.wait = never
	for {
		lease, err := c.acquire(ctx, want)
		if _, unavailable := err.(*UnavailableError); unavailable {
			continue // After 30 s of trying; there is nothing else that could be done.
		}
		if err != nil {
			return err
		}
		err = within(lease, run)
		if err == nil || err != lease.lostError() || ctx.Err() != nil {
			return err
		}
	}
}

// ObserveElection yields the present state of an election, then each change: leader, term, value and vacancy. It rides
// through errors of the moment, and ends with the error where it cannot go on, or the context ends.
func (c *Client) ObserveElection(ctx context.Context, election string) iter.Seq2[*api.ElectionState, error] {
	return func(yield func(*api.ElectionState, error) bool) {
		revision := ""
		for {
			state, err := c.change(ctx, election, revision)
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(state, nil) {
				return
			}
			revision = state.Revision
		}
	}
}

// change returns the state of an election as soon as its revision is another one.
func (c *Client) change(ctx context.Context, election, revision string) (*api.ElectionState, error) {
	target, err := newTarget("election", election)
	if err != nil {
		return nil, err
	}
	ctx, end, err := c.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	delay := firstDelay
	for {
		piece, query := time.Duration(0), url.Values{}
		if revision != "" {
			piece = time.Duration(c.piece.Load())
			query = url.Values{"after": {revision}, "wait_ms": {strconv.FormatInt(piece.Milliseconds(), 10)}}
		}
		var state api.ElectionState
		err := c.anywhere(ctx, now()+answerTimeout+piece, "GET", target.path(""), query, nil, &state)
		switch refused := err.(type) {
		case nil:
			if state.Revision != revision {
				return &state, nil
			}
			delay = firstDelay
		case *InvalidError:
			if !c.shorten(refused) {
				return nil, err
			}
		case *UnavailableError:
			asked, _ := refused.RetryAfter()
			if sleep(ctx, jittered(max(asked, delay))) != nil {
				return nil, interrupted(ctx, target, err)
			}
			delay = min(longestDelay, delay*2)
		default:
			return nil, err
		}
	}
}
