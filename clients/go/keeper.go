package quorate

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/quorate/clients/go/api"
)

const (
	// A request may name so many leases, and its body have 256 KiB.
	mostAtOnce      = 500
	mostBytes       = 200_000
	shortestTimeout = 250 * time.Millisecond
	// longestSleep: timers stand still in suspend, so the other clock is looked at no less often than this.
	longestSleep = time.Second
)

// keeper renews what a client holds, in one heartbeat for all, and sees to it that a loss is noticed in time. Its
// goroutine runs while something is held.
type keeper struct {
	servers   *servers
	transport *transport
	single    atomic.Bool // A server does not know how to extend many at once.
	changed   chan struct{}

	mu      sync.Mutex
	held    map[*Lease]bool
	running bool
}

func newKeeper(s *servers, t *transport) *keeper {
	return &keeper{servers: s, transport: t, changed: make(chan struct{}, 1), held: map[*Lease]bool{}}
}

func (k *keeper) add(lease *Lease) {
	k.mu.Lock()
	k.held[lease] = true
	if !k.running {
		k.running = true
		go k.run()
	}
	k.mu.Unlock()
	k.poke()
}

func (k *keeper) remove(lease *Lease) {
	k.mu.Lock()
	delete(k.held, lease)
	k.mu.Unlock()
	k.poke()
}

func (k *keeper) leases() []*Lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Keys(k.held))
}

func (k *keeper) poke() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

func (k *keeper) run() {
	timer := time.NewTimer(longestSleep)
	defer timer.Stop()
	for {
		k.mu.Lock()
		k.running = len(k.held) > 0
		running := k.running
		k.mu.Unlock()
		if !running {
			return
		}
		timer.Reset(min(k.step(), longestSleep))
		select {
		case <-k.changed:
		case <-timer.C:
		}
	}
}

// step ends what is over, renews what is due, and returns how long there is nothing to do.
func (k *keeper) step() time.Duration {
	at, next := now(), never
	var waiting []*Lease
	due := false
	for _, lease := range k.leases() {
		lease.mu.Lock()
		until, renewAt, renewable := lease.validUntil, lease.renewAt, lease.renewing == nil && !lease.limitReached
		lease.mu.Unlock()
		if at >= until {
			k.remove(lease)
			lease.expire()
			continue
		}
		next = min(next, until)
		if renewable {
			waiting = append(waiting, lease)
			next = min(next, max(renewAt, at))
			due = due || renewAt <= at
		}
	}
	if due {
		k.renewDue(waiting, at)
		next = at // The next look finds what is left to wait for.
		k.poke()
	}
	return max(0, next-now())
}

// renewDue takes along all that are due soon, so that leases of one client come to be renewed together.
func (k *keeper) renewDue(waiting []*Lease, at time.Duration) {
	waiting = slices.DeleteFunc(waiting, func(lease *Lease) bool {
		lease.mu.Lock()
		defer lease.mu.Unlock()
		return lease.renewAt-lease.ttl/6 > at
	})
	for batch := range batches(waiting) {
		done := make(chan struct{})
		for _, lease := range batch {
			lease.mu.Lock()
			lease.renewing = done
			lease.mu.Unlock()
		}
		go k.renew(batch, done)
	}
}

// batches yields as few requests as can be.
func batches(leases []*Lease) iter.Seq[[]*Lease] {
	return func(yield func([]*Lease) bool) {
		for len(leases) > 0 {
			count, bytes := 0, 0
			for ; count < min(len(leases), mostAtOnce); count++ {
				bytes += leases[count].target.entryBytes()
				if count > 0 && bytes > mostBytes {
					break
				}
			}
			if !yield(leases[:count]) {
				return
			}
			leases = leases[count:]
		}
	}
}

func (k *keeper) renew(batch []*Lease, done chan struct{}) {
	if len(batch) == 1 || k.single.Load() || !k.extendTogether(batch) {
		var group sync.WaitGroup
		for _, lease := range batch {
			group.Go(func() { k.extend(lease) })
		}
		group.Wait()
	}
	for _, lease := range batch {
		lease.mu.Lock()
		lease.renewing = nil
		lease.mu.Unlock()
	}
	close(done)
	k.poke()
}

func renewalTimeout(batch []*Lease) time.Duration {
	shortest := never
	for _, lease := range batch {
		shortest = min(shortest, lease.ttl/4)
	}
	return max(shortest, shortestTimeout)
}

// extendTogether returns false where the server refuses the request as a whole: each lease may still be extended by itself.
func (k *keeper) extendTogether(batch []*Lease) bool {
	entries := make([]map[string]any, len(batch))
	for i, lease := range batch {
		entries[i] = lease.target.entry(lease.answer.LeaseID)
	}
	var answer struct {
		Results []struct {
			Lease   *granted
			Problem json.RawMessage
		}
	}
	sent, server := now(), k.servers.current()
	body := map[string]any{"leases": entries}
	err := k.transport.send(context.Background(), renewalTimeout(batch), server, "POST", "/v1/leases/extend", nil, body, &answer)
	var unavailable *UnavailableError
	if err != nil && !errors.As(err, &unavailable) {
		var refused *Refusal
		if errors.As(err, &refused) {
			switch refused.Code {
			case "not_found", "method_not_allowed", "http_404", "http_405":
				k.single.Store(true)
			}
		}
		return false
	}
	if k.leave(server, err); err == nil && len(answer.Results) < len(batch) {
		k.servers.leave(server)
	}
	for i, lease := range batch {
		var problem api.Problem
		if i < len(answer.Results) {
			if result := answer.Results[i]; result.Lease != nil {
				lease.extended(sent, result.Lease.ValidityMs)
				continue
			} else if json.Unmarshal(result.Problem, &problem) == nil && problem.Code == "quorum_unavailable" {
				k.servers.leave(server)
			}
		}
		k.failed(lease, problem)
	}
	return true
}

func (k *keeper) extend(lease *Lease) {
	sent, server := now(), k.servers.current()
	body := lease.target.body(map[string]any{"lease_id": lease.answer.LeaseID})
	var answer granted
	err := k.transport.send(
		context.Background(), renewalTimeout([]*Lease{lease}), server, "POST", lease.target.path("extend"), nil, body, &answer)
	if err == nil {
		lease.extended(sent, answer.ValidityMs)
		return
	}
	k.leave(server, err)
	var problem api.Problem
	var refused *Refusal
	if errors.As(err, &refused) {
		problem = refused.Problem
	}
	k.failed(lease, problem)
}

func (k *keeper) leave(server string, err error) {
	var unavailable *UnavailableError
	if errors.As(err, &unavailable) && unavailable.elsewhere {
		k.servers.leave(server)
	}
}

// failed sees to it that it is tried again while there is time; only lease_lost is the end.
func (k *keeper) failed(lease *Lease, problem api.Problem) {
	lease.mu.Lock()
	released := lease.released
	lease.renewAt = now() + lease.ttl/30
	lease.limitReached = lease.limitReached || problem.Code == "hold_limit_reached"
	lease.mu.Unlock()
	if problem.Code == "lease_lost" && !released {
		k.remove(lease)
		lease.lose("lease_lost", problem.Detail, problem)
	}
}
