package quorate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"example.com/quorate/clients/go/api"
)

const (
	releaseTimeout = 5 * time.Second
	releasePause   = 100 * time.Millisecond
)

// granted is what the answers have in common by which leases are granted and extended.
type granted struct {
	FencingToken  int64            `json:"fencing_token"`
	FencingTokens map[string]int64 `json:"fencing_tokens"`
	LeaseID       string           `json:"lease_id"`
	Slots         []int64          `json:"slots"`
	TTLMs         int64            `json:"ttl_ms"`
	ValidityMs    int64            `json:"validity_ms"`
	WaitedMs      int64            `json:"waited_ms"`
}

// Lease is renewed in the background until it is released or lost.
type Lease struct {
	client *Client
	target target
	answer granted
	ttl    time.Duration
	ctx    context.Context
	cancel context.CancelCauseFunc
	ended  chan struct{} // closed when it is lost or released
	once   sync.Once     // for the release

	mu           sync.Mutex
	validUntil   time.Duration
	renewAt      time.Duration
	limitAt      time.Duration // when MaxHold is over
	limitReached bool
	renewing     chan struct{} // closed when the renewal that is under way has ended
	released     bool
	lost         *LostError
	failure      error // of the release
}

func newLease(ctx context.Context, c *Client, want wanted, answer granted, sent time.Duration) *Lease {
	lease := &Lease{client: c, target: want.target, answer: answer, ended: make(chan struct{}), limitAt: never}
	lease.ttl = time.Duration(answer.TTLMs) * time.Millisecond
	// Counted from when it can have been granted at the earliest: the answer took time, too.
	start := min(sent+time.Duration(answer.WaitedMs)*time.Millisecond, now())
	lease.extendFrom(start, answer.ValidityMs)
	if want.maxHold != never {
		lease.limitAt = start + want.maxHold
	}
	lease.ctx, lease.cancel = context.WithCancelCause(ctx)
	return lease
}

// extendFrom is called under the lock, or before anybody else has the lease.
func (l *Lease) extendFrom(start time.Duration, validityMs int64) {
	validity := time.Duration(validityMs) * time.Millisecond
	l.validUntil = start + validity
	// A third of the ttl; where it ends sooner, since MaxHold does, a third of what is left.
	l.renewAt = start + max(min(l.ttl, validity)/3, l.ttl/30)
}

func (l *Lease) extended(sent time.Duration, validityMs int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost == nil { // Lost stays lost.
		l.extendFrom(sent, validityMs)
	}
}

// Context returns a context for the work under the lease. It is derived from the one with which the lease was acquired,
// and ends with a *LostError as its cause as soon as the lease is lost, or with ErrReleased when it is released.
func (l *Lease) Context() context.Context { return l.ctx }

// Name returns the name; of several locks the first.
func (l *Lease) Name() string { return l.target.names[0] }

// Names returns all names: several only for a lease of several locks.
func (l *Lease) Names() []string { return slices.Clone(l.target.names) }

// FencingToken returns a number greater than the token of every earlier lease of the name. Send it with every write to
// what the lock protects. Several locks have a token each, see FencingTokens; this one is 0 then.
func (l *Lease) FencingToken() int64 { return l.answer.FencingToken }

// FencingTokens returns the token of each name.
func (l *Lease) FencingTokens() map[string]int64 {
	if l.answer.FencingTokens == nil {
		return map[string]int64{l.Name(): l.FencingToken()}
	}
	return maps.Clone(l.answer.FencingTokens)
}

// Slots returns which permits of a semaphore these are.
func (l *Lease) Slots() []int64 { return slices.Clone(l.answer.Slots) }

// Waited returns how long the server that granted the lease had to wait for it.
func (l *Lease) Waited() time.Duration { return time.Duration(l.answer.WaitedMs) * time.Millisecond }

// Remaining returns how long the lease is valid for certain unless it is renewed; 0 when it is lost.
func (l *Lease) Remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost != nil {
		return 0
	}
	return max(0, l.validUntil-now())
}

// Check returns a *LostError where the lease is lost or over: for before a step that must not be done without it.
func (l *Lease) Check() error {
	l.mu.Lock()
	over := now() >= l.validUntil
	l.mu.Unlock()
	if over {
		l.expire()
	}
	return l.lostError()
}

// OnLost calls it in a goroutine of its own, as soon as the lease is lost: now, if it is already. A lease that is
// released is not lost.
func (l *Lease) OnLost(call func(*LostError)) {
	go func() {
		<-l.ended
		l.mu.Lock()
		lost := l.lost
		l.mu.Unlock()
		if lost != nil {
			call(lost)
		}
	}()
}

// Release gives the lease back. It returns a *LostError where it had been lost: others may have had it meanwhile. That
// no server can be reached is no error: the lease ends with its ttl. Again it does nothing, and returns the same.
func (l *Lease) Release() error {
	l.once.Do(l.release)
	if err := l.lostError(); err != nil {
		return err
	}
	return l.failure
}

// String shows no secret.
func (l *Lease) String() string {
	return fmt.Sprintf("lease of %s, %s left", l.target, l.Remaining().Round(time.Millisecond))
}

// GoString shows no secret.
func (l *Lease) GoString() string { return l.String() }

func (l *Lease) lostError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost == nil {
		return nil
	}
	return l.lost
}

// lose signals the loss, once.
func (l *Lease) lose(code, detail string, problem api.Problem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost != nil {
		return
	}
	select {
	case <-l.ended:
		return // It has been released.
	default:
	}
	l.lost = lost(l.target, code, detail, problem)
	l.cancel(l.lost)
	close(l.ended)
}

// expire is for when its validity is over.
func (l *Lease) expire() {
	l.mu.Lock()
	// What clocks may drift apart is taken off the validity, so it ends a little before the limit.
	limited := l.limitReached || l.limitAt != never && now() >= l.limitAt-l.ttl/20
	l.mu.Unlock()
	if limited {
		l.lose("hold_limit_reached", "it was held for as long as MaxHold allows", api.Problem{})
	} else {
		l.lose("lease_expired", "its validity ended before a server extended it", api.Problem{})
	}
}

func (l *Lease) release() {
	l.mu.Lock()
	l.released = true
	renewing := l.renewing
	l.mu.Unlock()
	l.client.keeper.remove(l)
	deadline := now() + releaseTimeout
	if renewing != nil {
		ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
		select {
		case <-renewing:
		case <-ctx.Done():
		}
		cancel()
	}
	l.failure = l.giveBack(deadline)
	l.cancel(ErrReleased)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost == nil {
		close(l.ended)
	}
}

// giveBack asks one server after the other. That it was not held any more is a loss; that none answers is not, as long
// as the lease is valid.
func (l *Lease) giveBack(deadline time.Duration) error {
	over := l.Check() != nil
	tour, again := newTour(l.client.servers), false
	body := l.target.body(map[string]any{"lease_id": l.answer.LeaseID})
	for {
		server := l.client.servers.current()
		var answer api.Released
		err := l.client.transport.send(
			context.Background(), deadline-now(), server, "POST", l.target.path("release"), nil, body, &answer)
		var unavailable *UnavailableError
		switch {
		case err == nil:
			// Where an earlier try got no answer, it may have been that one that released it.
			if !answer.Released && !again {
				l.lose("lease_lost", "it was not held any more when it was released", api.Problem{})
			}
			return nil
		case !errors.As(err, &unavailable):
			return err
		}
		again = true
		if !tour.goesOn(server, unavailable) {
			if over {
				return nil
			}
			time.Sleep(releasePause)
		}
		if now() >= deadline || l.Check() != nil && !over {
			return nil
		}
	}
}

// forget leaves the lease to its ttl.
func (l *Lease) forget() {
	l.client.keeper.remove(l)
	l.once.Do(func() { l.cancel(ErrReleased) })
}

// Leadership is the lease of a leader.
type Leadership struct{ *Lease }

// Term returns the fencing token, under the name that it has in elections: greater than every earlier leader's.
func (l *Leadership) Term() int64 { return l.FencingToken() }

// Proclaim tells all observers another value.
func (l *Leadership) Proclaim(ctx context.Context, value string) error {
	_, err := l.client.API().Proclaim(ctx, l.Name(), api.Proclaim{LeaseID: l.answer.LeaseID, Value: value})
	return err
}
