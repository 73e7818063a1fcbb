package quorate

import (
	"context"
	"crypto/rand"
	"errors"
	random "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/quorate/clients/go/api"
)

const (
	// longestPiece: a longer wait is made of pieces, since proxies cut long requests off, and servers have a max_wait.
	longestPiece = 20 * time.Second
	// patience ends a wait without limit after so long without a verdict, of whatever kind.
	patience = 30 * time.Second
	// grace is how much later than the wait an answer may come that says how it ended.
	grace = time.Second

	firstDelay   = 100 * time.Millisecond
	longestDelay = 2 * time.Second
)

// acquire waits for as long as it is asked to. However it ends but by a lease, nothing is left behind.
func (c *Client) acquire(ctx context.Context, want wanted) (*Lease, error) {
	waiting, end, err := c.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	deadline := after(want.wait)
	for {
		lease, err := c.acquireOnce(ctx, waiting, want, deadline)
		if err != nil {
			return nil, err
		}
		if waiting.Err() == nil && lease.Remaining() > 0 {
			c.keeper.add(lease)
			return lease, nil
		}
		// The caller has left; or this process was paused, or the network slow: by now somebody else may have it.
		c.running.Go(func() { _ = lease.Release() })
		if waiting.Err() != nil {
			return nil, interrupted(waiting, want.target, nil)
		}
		if now() >= deadline {
			return nil, &UnavailableError{Refusal: Refusal{
				Code: "lease_expired", target: want.target.String(),
				Problem: api.Problem{Code: "lease_expired", Detail: "it was over when its answer was read"},
			}}
		}
	}
}

func (c *Client) acquireOnce(ctx, waiting context.Context, want wanted, deadline time.Duration) (*Lease, error) {
	a := attempts{
		client: c, target: want.target, deadline: deadline, once: want.wait == 0, delay: firstDelay,
		body: want.target.body(want.fields), tour: newTour(c.servers), verdictAt: now(),
		after: map[string]attemptAfter{}, asked: map[string]bool{},
	}
	// The same at every attempt: whichever was granted, the next one gets that lease.
	requestID := rand.Text()
	a.body["request_id"] = requestID
	sent, answer, err := a.run(waiting)
	if err == nil {
		return newLease(ctx, c, want, answer, sent), nil
	}
	if a.mayHaveLeftSomething(err) {
		c.running.Go(func() { c.giveUp(want.target, requestID, a.asked) })
	}
	if waiting.Err() != nil {
		return nil, interrupted(waiting, want.target, a.last)
	}
	var refused interface{ setTarget(target) }
	if errors.As(err, &refused) {
		refused.setTarget(want.target)
	}
	return nil, err
}

// giveUp ends the wait of a request at each server that was asked, and gives back what it may have got. However that
// ends: a server undoes what it is left with when it sees that nobody waits for the answer.
func (c *Client) giveUp(t target, requestID string, asked map[string]bool) {
	body, deadline := t.body(map[string]any{"request_id": requestID}), now()+releaseTimeout
	var group sync.WaitGroup
	var told atomic.Bool
	for server := range asked {
		group.Go(func() {
			var released api.Released
			err := c.transport.send(context.Background(), releaseTimeout/2, server, "POST", t.path("release"), nil, body, &released)
			if err == nil {
				told.Store(true)
			}
		})
	}
	group.Wait()
	if !told.Load() {
		// What a server granted that is gone, another one gives back.
		var released api.Released
		_ = c.anywhere(context.Background(), deadline, "POST", t.path("release"), nil, body, &released)
	}
}

// shorten returns whether the server refused the length of a wait, so that shorter pieces may do.
func (c *Client) shorten(err *InvalidError) bool {
	piece := c.piece.Load()
	ofWait := func(field api.FieldError) bool { return field.Field == "wait_ms" }
	if piece < int64(firstDelay) || !slices.ContainsFunc(err.Fields(), ofWait) {
		return false
	}
	c.piece.CompareAndSwap(piece, piece/2)
	return true
}

// attempts are those of one acquisition, at one server or several, until one is granted or the time is up.
type attempts struct {
	client    *Client
	target    target
	body      map[string]any
	deadline  time.Duration
	once      bool
	tour      *tour
	count     int
	verdictAt time.Duration
	delay     time.Duration
	after     map[string]attemptAfter // by server
	asked     map[string]bool         // the servers
	last      error                   // the last refusal
}

// attemptAfter is the earliest moment of the next attempt, and whether the server asked for it.
type attemptAfter struct {
	moment time.Duration
	asked  bool
}

// mayHaveLeftSomething is false for a single attempt that was refused; all others may have a place in a queue, or a
// lease.
func (a *attempts) mayHaveLeftSomething(err error) bool {
	var refused *Refusal
	var unavailable *UnavailableError
	return !errors.As(err, &refused) || errors.As(err, &unavailable) || a.count > 1 || !a.once
}

// run returns when the attempt was sent that was granted, and its answer.
func (a *attempts) run(ctx context.Context) (time.Duration, granted, error) {
	for {
		if ctx.Err() != nil {
			return 0, granted{}, ctx.Err()
		}
		wait, limit := a.lengths(ctx)
		a.body["wait_ms"] = wait.Milliseconds()
		a.count++
		var answer granted
		server, sent := a.client.servers.current(), now()
		a.asked[server] = true
		err := a.client.transport.send(ctx, limit, server, "POST", a.target.path("acquire"), nil, a.body, &answer)
		if err == nil && answer.LeaseID != "" {
			return sent, answer, nil
		}
		if err == nil {
			err = unreachable(server, errNoJSON)
		}
		if ctx.Err() == nil {
			a.last = err
		}
		if err := a.next(ctx, server, wait, now()-sent, err); err != nil {
			return 0, granted{}, err
		}
	}
}

// lengths returns how long the next attempt waits, and how long its answer may take.
func (a *attempts) lengths(ctx context.Context) (wait, limit time.Duration) {
	if a.once {
		return 0, answerTimeout
	}
	left := never
	if a.deadline != never {
		left = a.deadline - now()
	}
	wait, limit = min(time.Duration(a.client.piece.Load()), left), never
	if a.deadline != never {
		limit = left + grace
	}
	if ends, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(ends))
	}
	wait = max(wait, 0)
	return wait, min(answerTimeout+wait, limit)
}

// next pauses before the next attempt as this error asks for, and returns the error that ends the attempts.
func (a *attempts) next(ctx context.Context, server string, wait, took time.Duration, err error) error {
	switch refused := err.(type) {
	case *HeldError:
		a.tour.answered()
		a.verdictAt = now()
		if a.once || now() >= a.deadline-time.Millisecond {
			return err
		}
		if wait > firstDelay && took >= wait/10*9 {
			a.delay = firstDelay
			return nil // A piece is over. The server keeps the place in the queue, but not for long.
		}
		a.postpone(server, &refused.Refusal)
		return a.pause(ctx, server, err)
	case *InvalidError:
		if a.once || !a.client.shorten(refused) {
			return err
		}
		return nil
	case *UnavailableError:
		if !a.once && now() >= a.deadline {
			return err
		}
		goesOn, next := a.tour.goesOn(server, refused), a.client.servers.current()
		if goesOn && next == server {
			return nil // A connection that broke.
		}
		a.postpone(server, &refused.Refusal)
		if goesOn && a.after[next].moment <= now() {
			return nil
		}
		if a.once || a.deadline == never && now()-a.verdictAt >= patience {
			return err
		}
		if refused.elsewhere {
			server = a.soonest(server)
			a.client.servers.stay(server)
		}
		return a.pause(ctx, server, err)
	}
	return err
}

// postpone leaves the server alone for as long as it asks for, or a little longer each time.
func (a *attempts) postpone(server string, refused *Refusal) {
	delay, asked := refused.RetryAfter()
	if !asked {
		delay = a.delay
		a.delay = min(longestDelay, a.delay*2)
	}
	a.after[server] = attemptAfter{now() + jittered(delay), asked}
}

// soonest returns which of the servers that failed may be asked first.
func (a *attempts) soonest(server string) string {
	for other, next := range a.after {
		if next.moment < a.after[server].moment {
			server = other
		}
	}
	return server
}

// pause waits until the server may be asked again, and returns the error where there is no time for it.
func (a *attempts) pause(ctx context.Context, server string, err error) error {
	next := a.after[server]
	if next.asked && next.moment >= a.deadline {
		return err
	}
	return sleep(ctx, min(next.moment, a.deadline)-now())
}

// jittered adds up to half as much again.
func jittered(delay time.Duration) time.Duration {
	return time.Duration(float64(delay) * (1 + random.Float64()/2))
}

func sleep(ctx context.Context, length time.Duration) error {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
