package quorate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/quorate/clients/go/api"
)

func TestS01_ALockIsHeldWithinItsBlockAndFreeAfterIt(t *testing.T) {
	t.Parallel()
	client, see, name := newClient(t, urls(t)...), observer(urls(t)[0]), newName()
	lease := mustLock(t, client, name, TTL(2*time.Second), Owner("me"))
	if state := see.lock(t, name); !state.Held || state.Owner != "me" {
		t.Fatalf("%+v", state)
	}
	if left := lease.Remaining(); left <= 0 || left > 2*time.Second {
		t.Fatal(left)
	}
	must(t, lease.Check())
	must(t, lease.Release())
	must(t, lease.Release())
	if see.held(t, name) || context.Cause(lease.Context()) != ErrReleased {
		t.Fatal("it is held after its release")
	}
	mine := errors.New("of the body")
	err := client.WithLock(context.Background(), name, func(_ context.Context, later *Lease) error {
		if later.FencingToken() <= lease.FencingToken() {
			t.Error("the token is not greater")
		}
		return mine
	}, TTL(2*time.Second))
	if err == nil || err.Error() != mine.Error() || see.held(t, name) {
		t.Fatal(err)
	}
}

func TestS02_ALockThatIsHeldIsRefusedAtOnceWithItsHolder(t *testing.T) {
	t.Parallel()
	client, name := newClient(t, urls(t)...), newName()
	other := newClientOf(t, Config{Servers: urls(t), Owner: "the other"})
	lease := mustLock(t, other, name)
	begun := now()
	_, err := client.Lock(context.Background(), name, Wait(0))
	held := as[*HeldError](t, err)
	if took := now() - begun; took > 2*time.Second {
		t.Fatal(took)
	}
	if held.Code != "lock_held" || held.Holder() == nil || held.Holder().Owner != "the other" || held.Nodes().Total != 3 {
		t.Fatalf("%+v", held.Problem)
	}
	must(t, lease.Release())
	must(t, mustLock(t, client, name, Wait(0)).Release())
}

func TestS03_WithoutAServerItIsUnavailableAndNotHeld(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	closed.Close()
	for _, wait := range []time.Duration{0, time.Second} {
		begun := now()
		_, err := newClient(t, "http://"+closed.Addr().String()).Lock(context.Background(), newName(), Wait(wait))
		as[*UnavailableError](t, err)
		if took := now() - begun; took > wait+2*time.Second {
			t.Fatal(took)
		}
	}
}

func TestS03_WithoutAQuorumItIsUnavailableWithTheTally(t *testing.T) {
	t.Parallel()
	d := ownDeployment(t)
	client := newClient(t, d.serve(t).url)
	for _, node := range d.nodes[:2] {
		must(t, node.Process.Kill())
	}
	for _, wait := range []time.Duration{0, time.Second} {
		_, err := client.Lock(context.Background(), newName(), Wait(wait))
		if refused := as[*UnavailableError](t, err); refused.Code != "quorum_unavailable" || refused.Nodes().Quorum != 2 {
			t.Fatal(err)
		}
	}
}

func TestS04_TenWorkersLoseNoIncrement(t *testing.T) {
	t.Parallel()
	name, counter := newName(), filepath.Join(t.TempDir(), "counter")
	must(t, os.WriteFile(counter, []byte("0"), 0o644))
	var workers sync.WaitGroup
	for range 10 {
		client := newClient(t, urls(t)...)
		workers.Go(func() {
			for range 100 {
				err := client.WithLock(context.Background(), name, func(context.Context, *Lease) error {
					text, err := os.ReadFile(counter)
					if err != nil {
						return err
					}
					value, err := strconv.Atoi(string(text))
					return errors.Join(err, os.WriteFile(counter, []byte(strconv.Itoa(value+1)), 0o644))
				}, TTL(10*time.Second), Wait(time.Minute))
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	workers.Wait()
	if text, err := os.ReadFile(counter); err != nil || string(text) != "1000" {
		t.Fatal(string(text), err)
	}
}

func TestS05_ASemaphoreLetsNoMoreInThanItsLimit(t *testing.T) {
	t.Parallel()
	client, name := newClient(t, urls(t)...), newName()
	var inside, most atomic.Int64
	var workers sync.WaitGroup
	for worker := range 8 {
		permits := 1 + worker/6
		workers.Go(func() {
			for range 5 {
				lease, err := client.Semaphore(context.Background(), name, 3, Permits(permits), Wait(30*time.Second))
				if err != nil || len(lease.Slots()) != permits {
					t.Error(lease, err)
					return
				}
				most.Store(max(most.Load(), inside.Add(int64(permits))))
				time.Sleep(10 * time.Millisecond)
				inside.Add(-int64(permits))
				if err := lease.Release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	if most.Load() > 3 || most.Load() < 2 {
		t.Fatal(most.Load())
	}
}

func TestS06_LocksInAnyOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	a, b := newName(), newName()
	var workers sync.WaitGroup
	for _, names := range [][]string{{a, b}, {b, a}} {
		client := newClient(t, urls(t)...)
		workers.Go(func() {
			for range 20 {
				err := client.WithLocks(context.Background(), names, func(_ context.Context, lease *Lease) error {
					if tokens := lease.FencingTokens(); len(tokens) != 2 || tokens[a] == 0 || tokens[b] == 0 {
						return fmt.Errorf("tokens %v", tokens)
					}
					return nil
				}, TTL(10*time.Second), Wait(30*time.Second))
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
}

func TestS07_AnExclusiveLeaseComesAfterAllSharedOnes(t *testing.T) {
	t.Parallel()
	client, name := newClient(t, urls(t)...), newName()
	var leases []*Lease
	for range 3 {
		leases = append(leases, mustLock(t, client, name, Shared(), Wait(0)))
	}
	exclusive := lockLater(client, name, Wait(20*time.Second))
	until(t, "it waits", func() bool { return observer(urls(t)[0]).waiters(t, name) == 1 })
	for _, lease := range leases {
		if len(exclusive) > 0 {
			t.Fatal("it was granted beside a shared lease")
		}
		must(t, lease.Release())
	}
	lease := leaseOf(t, exclusive)
	if lease.FencingToken() <= leases[2].FencingToken() {
		t.Fatal("the token is not greater")
	}
	must(t, lease.Release())
}

func TestS08_MaxHoldEndsALease(t *testing.T) {
	t.Parallel()
	client, begun := newClient(t, urls(t)...), now()
	lease := mustLock(t, client, newName(), TTL(2*time.Second), MaxHold(3*time.Second))
	<-lease.Context().Done()
	took := now() - begun
	if lost := as[*LostError](t, lease.Release()); lost.Code != "hold_limit_reached" || took < 2500*time.Millisecond {
		t.Fatal(lost, took)
	}
}

func TestS09_AnErrorNamesTheFieldThatTheAPIDoesNotTake(t *testing.T) {
	t.Parallel()
	client, ctx, name := newClient(t, urls(t)...), context.Background(), newName()
	of := func(_ *Lease, err error) error { return err }
	for _, one := range []struct {
		field string
		err   error
	}{
		{"name", of(client.Lock(ctx, "a/b"))},
		{"name", of(client.Lock(ctx, ".."))},
		{"ttl_ms", of(client.Lock(ctx, name, TTL(500*time.Microsecond)))},
		{"ttl_ms", of(client.Lock(ctx, name, TTL(time.Second+500*time.Microsecond)))},
		{"ttl_ms", of(client.Lock(ctx, name, TTL(0)))},
		{"wait", of(client.Lock(ctx, name, Wait(-1)))},
		{"limit", of(client.Semaphore(ctx, name, 0))},
		{"names", of(client.Locks(ctx, []string{name, name}))},
		{"names", of(client.Locks(ctx, nil))},
	} {
		if fields := as[*InvalidError](t, one.err).Fields(); len(fields) != 1 || fields[0].Field != one.field {
			t.Errorf("%s: %+v", one.field, fields)
		}
	}
}

func TestARateLimitCountsCallsInAWindow(t *testing.T) {
	t.Parallel()
	client, ctx, name := newClient(t, urls(t)...), context.Background(), newName()
	begun := now()
	for range 4 {
		must(t, client.RateLimit(ctx, name, 2, time.Second, Wait(10*time.Second)))
	}
	if took := now() - begun; took < time.Second {
		t.Fatal(took)
	}
	as[*HeldError](t, client.RateLimit(ctx, name, 2, time.Minute, Wait(0)))
}

func TestEveryCallOfTheAPICanBeMade(t *testing.T) {
	t.Parallel()
	calls, ctx, name := newClient(t, urls(t)...).API(), context.Background(), newName()
	issued, err := calls.IssueToken(ctx, name)
	must(t, err)
	state, err := calls.CheckToken(ctx, name, api.CheckToken{FencingToken: issued.FencingToken})
	if err != nil || state.Status != "current" {
		t.Fatal(state, err)
	}
	later, err := calls.IssueToken(ctx, name)
	must(t, err)
	_, err = calls.CheckToken(ctx, name, api.CheckToken{FencingToken: issued.FencingToken})
	if stale := as[*StaleError](t, err); *stale.Problem.HighestToken != later.FencingToken {
		t.Fatal(stale.Problem)
	}
	list, err := calls.ListLocks(ctx, api.ListLocksQuery{Prefix: name, Limit: 3})
	if err != nil || len(list.Locks) != 0 {
		t.Fatal(list, err)
	}
	nodes, err := calls.ListNodes(ctx)
	if err != nil || len(nodes.Nodes) != 3 {
		t.Fatal(nodes, err)
	}
}
