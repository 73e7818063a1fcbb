package quorate

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/quorate/clients/go/api"
)

type result struct {
	lease *Lease
	err   error
}

// lockLater acquires in a goroutine of its own.
func lockLater(client *Client, name string, options ...Option) chan result {
	answer := make(chan result, 1)
	go func() {
		lease, err := client.Lock(context.Background(), name, options...)
		answer <- result{lease, err}
	}()
	return answer
}

func leaseOf(t testing.TB, answer chan result) *Lease {
	t.Helper()
	got := <-answer
	must(t, got.err)
	return got.lease
}

func TestS10_AWaitInPiecesKeepsItsPlace(t *testing.T) {
	t.Parallel()
	name, proxy := newName(), newFault(t, urls(t)[0])
	holder, first, second := newClient(t, proxy.URL), newClient(t, proxy.URL), newClient(t, proxy.URL)
	first.piece.Store(int64(time.Second))
	second.piece.Store(int64(time.Second))
	held := mustLock(t, holder, name)
	one := lockLater(first, name, Wait(20*time.Second))
	until(t, "the first waits", func() bool { return observer(proxy.URL).waiters(t, name) >= 1 })
	two := lockLater(second, name, Wait(20*time.Second))
	until(t, "several pieces are over", func() bool {
		count, _ := proxy.requests("/v1/locks/" + name + "/acquire")
		return count >= 6
	})
	until(t, "neither is between two pieces", func() bool { return observer(proxy.URL).waiters(t, name) == 2 })
	must(t, held.Release())
	lease := leaseOf(t, one)
	if len(two) > 0 {
		t.Fatal("the second came first")
	}
	must(t, lease.Release())
	must(t, leaseOf(t, two).Release())
	if len(proxy.requestIDs) != 3 {
		t.Fatal(proxy.requestIDs)
	}
}

func TestS10_AServerThatTakesNoLongWaitsGetsShorterOnes(t *testing.T) {
	t.Parallel()
	server, name := ownDeployment(t).serve(t, "--max-wait", "1s"), newName()
	client := newClient(t, server.url)
	held := mustLock(t, client, name)
	waiting := lockLater(client, name, Wait(20*time.Second))
	until(t, "it waits", func() bool { return observer(server.url).waiters(t, name) == 1 })
	must(t, held.Release())
	must(t, leaseOf(t, waiting).Release())
}

func TestS11_AWaiterGoesOnAtTheNextServer(t *testing.T) {
	t.Parallel()
	d, name := ownDeployment(t), newName()
	a, b := d.serve(t), d.serve(t)
	held := mustLock(t, newClient(t, b.url), name)
	waiting := lockLater(newClient(t, a.url, b.url), name, Wait(20*time.Second))
	until(t, "it waits at A", func() bool { return observer(a.url).waiters(t, name) == 1 })
	a.kill()
	until(t, "it waits at B", func() bool { return observer(b.url).waiters(t, name) == 1 })
	must(t, held.Release())
	must(t, leaseOf(t, waiting).Release())
}

func TestS12_AnAnswerThatIsCutOffCostsNoLease(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		wait   time.Duration
		others []string
	}{{0, urls(t)[1:]}, {5 * time.Second, urls(t)[1:]}, {0, nil}} {
		name, proxy := newName(), newFault(t, urls(t)[0])
		var mu sync.Mutex
		var tokens []int64
		proxy.cut = func(path string, answer map[string]any) bool {
			token, ok := answer["fencing_token"].(float64)
			if !ok {
				return false
			}
			mu.Lock()
			defer mu.Unlock()
			tokens = append(tokens, int64(token))
			return len(tokens) == 1
		}
		lease := mustLock(t, newClient(t, slices.Insert(slices.Clone(one.others), 0, proxy.URL)...), name, Wait(one.wait))
		if lease.FencingToken() != tokens[0] {
			t.Fatal(lease.FencingToken(), tokens)
		}
		must(t, lease.Release())
		if observer(urls(t)[0]).held(t, name) {
			t.Fatal("something was left behind")
		}
	}
}

func TestS12_AReleaseWhoseAnswerIsCutOffIsNoLoss(t *testing.T) {
	t.Parallel()
	proxy := newFault(t, urls(t)[0])
	var once sync.Once
	proxy.cut = func(path string, answer map[string]any) (cut bool) {
		if answer["released"] != nil {
			once.Do(func() { cut = true })
		}
		return cut
	}
	name := newName()
	must(t, mustLock(t, newClient(t, proxy.URL), name).Release())
	if count, _ := proxy.requests("/v1/locks/" + name + "/release"); count != 2 {
		t.Fatal(count)
	}
}

func TestS13_AServerThatDrainsCostsNothing(t *testing.T) {
	t.Parallel()
	d, name := ownDeployment(t), newName()
	a, b := d.serve(t), d.serve(t)
	client := newClient(t, a.url, b.url)
	lease := mustLock(t, client, name, TTL(1500*time.Millisecond))
	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			err := client.WithLock(context.Background(), name, func(context.Context, *Lease) error { return nil },
				TTL(2*time.Second), Wait(20*time.Second))
			if err != nil {
				t.Error(err)
			}
		})
	}
	until(t, "three wait at A", func() bool { return observer(a.url).waiters(t, name) == 3 })
	a.signal(syscall.SIGTERM)
	until(t, "three wait at B", func() bool { return observer(b.url).waiters(t, name) == 3 })
	lasts(t, lease, 3*time.Second) // two of its ttls
	must(t, lease.Release())
	workers.Wait()
}

func TestS14_RetryAfterIsHeededWithinTheWait(t *testing.T) {
	t.Parallel()
	for _, refusal := range []api.Problem{
		{Status: 503, Code: "quorum_unavailable"}, {Status: 429, Code: "too_many_waiters"}, {Status: 503, Code: "overloaded"},
	} {
		const after = 400 * time.Millisecond
		milliseconds := after.Milliseconds()
		refusal.RetryAfterMs = &milliseconds
		var mu sync.Mutex
		var asked []time.Duration
		name, proxy := newName(), newFault(t, urls(t)[0])
		proxy.before = func(path string) *api.Problem {
			mu.Lock()
			defer mu.Unlock()
			if path != "/v1/locks/"+name+"/acquire" {
				return nil
			}
			asked = append(asked, now())
			if len(asked) < 3 {
				return &refusal
			}
			return nil
		}
		client := newClient(t, proxy.URL)
		lease := mustLock(t, client, name, Wait(10*time.Second))
		if len(asked) != 3 || asked[1]-asked[0] < after || asked[2]-asked[1] < after {
			t.Fatal(refusal.Code, asked)
		}
		must(t, lease.Release())
		asked = nil
		begun := now()
		_, err := client.Lock(context.Background(), name, Wait(300*time.Millisecond))
		refused := as[*UnavailableError](t, err)
		if given, _ := refused.RetryAfter(); refused.Code != refusal.Code || given != after || len(asked) != 1 {
			t.Fatal(refused, asked)
		}
		if took := now() - begun; took > 1300*time.Millisecond {
			t.Fatal(took)
		}
	}
}

func TestS14_AServerIsLeftAloneForAsLongAsItAsksThoughAnotherFailsSooner(t *testing.T) {
	t.Parallel()
	const after = 700 * time.Millisecond
	milliseconds := after.Milliseconds()
	var mu sync.Mutex
	var asked []time.Duration
	busy, broken := newFault(t, urls(t)[0]), newFault(t, urls(t)[0])
	busy.before = func(string) *api.Problem {
		mu.Lock()
		defer mu.Unlock()
		if asked = append(asked, now()); len(asked) < 3 {
			return &api.Problem{Status: 503, Code: "overloaded", RetryAfterMs: &milliseconds}
		}
		return nil
	}
	broken.before = func(string) *api.Problem { return &api.Problem{Status: 502} }
	lease := mustLock(t, newClient(t, busy.URL, broken.URL), newName(), Wait(20*time.Second))
	if len(asked) != 3 || asked[1]-asked[0] < after || asked[2]-asked[1] < after {
		t.Fatal(asked)
	}
	if _, all := broken.requests(""); all < 3 {
		t.Fatal(all)
	}
	must(t, lease.Release())
}

func TestS15_ASilentServerCostsNoMoreThanTheWait(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer silent.Close()
	begun := now()
	_, err = newClient(t, "http://"+silent.Addr().String()).Lock(context.Background(), newName(), Wait(time.Second))
	if as[*UnavailableError](t, err); errors.Is(err, context.DeadlineExceeded) {
		t.Fatal("it looks like the end of the caller's context")
	}
	if took := now() - begun; took > 3*time.Second {
		t.Fatal(took)
	}
}

func TestAWaitEndsWithItsContextAndSaysWhoHeldIt(t *testing.T) {
	t.Parallel()
	client, name := newClient(t, urls(t)...), newName()
	client.piece.Store(int64(200 * time.Millisecond))
	lease := mustLock(t, newClientOf(t, Config{Servers: urls(t), Owner: "the other"}), name)
	ctx, cancel := context.WithTimeout(context.Background(), 700*time.Millisecond)
	defer cancel()
	_, err := client.Lock(ctx, name)
	if !errors.Is(err, context.DeadlineExceeded) || as[*HeldError](t, err).Holder().Owner != "the other" {
		t.Fatal(err)
	}
	must(t, lease.Release())
}

func TestS63_ManyGoroutinesShareAClient(t *testing.T) {
	t.Parallel()
	client, name := newClient(t, urls(t)...), newName()
	inside := make([]int, 7)
	var workers sync.WaitGroup
	for worker := range 50 {
		workers.Go(func() {
			for range 5 {
				err := client.WithLock(context.Background(), name+string(rune('a'+worker%7)), func(context.Context, *Lease) error {
					inside[worker%7]++ // The race detector sees to it that the lock orders these.
					return nil
				}, Wait(30*time.Second))
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
}
