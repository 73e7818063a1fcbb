package quorate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
)

func TestS40_ACallerWhoIsCancelledAtAnyMomentLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	const callers, names = 200, 20
	client, name := newClient(t, urls(t)...), newName()
	var group sync.WaitGroup
	places := make(chan struct{}, 40)
	for i := range callers {
		group.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(time.Duration(rand.IntN(60_000))*time.Microsecond, cancel)
			err := client.WithLock(ctx, fmt.Sprintf("%s:%d", name, i%names), func(ctx context.Context, _ *Lease) error {
				return sleep(ctx, time.Duration(rand.IntN(10))*time.Millisecond)
			}, TTL(time.Minute))
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	allFree(t, name, names)
}

// allFree needs every name free long before its ttl: the client's own clean-up may take a second, on a busy machine
// some more.
func allFree(t testing.TB, name string, names int) {
	t.Helper()
	see := observer(urls(t)[0])
	for i := range names {
		until(t, "the name is free", func() bool { return !see.held(t, fmt.Sprintf("%s:%d", name, i)) })
	}
}

func TestS40_AWaitThatIsOverLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	const callers, names = 200, 20
	client, name := newClient(t, urls(t)...), newName()
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() {
			wait := Wait(time.Duration(rand.IntN(60)) * time.Millisecond)
			err := client.WithLock(context.Background(), fmt.Sprintf("%s:%d", name, i%names), func(context.Context, *Lease) error {
				time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
				return nil
			}, TTL(time.Minute), wait)
			var held *HeldError
			var unavailable *UnavailableError
			if err != nil && !errors.As(err, &held) && !errors.As(err, &unavailable) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	allFree(t, name, names)
}

func init() {
	roles["exits"] = func(arguments []string) {
		client, err := New(Config{Servers: arguments[:1]})
		if err != nil {
			panic(err)
		}
		defer client.Close()
		for i := range 3 {
			if _, err := client.Lock(context.Background(), fmt.Sprintf("%s:%d", arguments[1], i), TTL(time.Minute)); err != nil {
				panic(err)
			}
		}
		fmt.Println("held")
		var line string
		if _, _ = fmt.Scanln(&line); line == "panic" {
			fmt.Println("panics")
			panic("uncaught")
		}
	}
}

func TestS41_AProcessThatEndsReleasesWhatItHeld(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"return", "panic"} {
		name := newName()
		p := startRole(t, "exits", urls(t)[0], name)
		p.line()
		if !observer(urls(t)[0]).held(t, name+":2") {
			t.Fatal("it is not held")
		}
		_, err := fmt.Fprintln(p.in, end)
		must(t, err)
		_ = p.Wait()
		for i := range 3 {
			if observer(urls(t)[0]).held(t, fmt.Sprintf("%s:%d", name, i)) {
				t.Fatal("it is held after the process ended by " + end)
			}
		}
	}
}

func TestS43_ThoseBehindAWaiterThatGivesUpAreServed(t *testing.T) {
	t.Parallel()
	client, name := newClient(t, urls(t)...), newName()
	see := observer(urls(t)[0])
	held := mustLock(t, newClient(t, urls(t)...), name)
	ctx, cancel := context.WithCancel(context.Background())
	gaveUp := make(chan error, 1)
	go func() {
		_, err := client.Lock(ctx, name)
		gaveUp <- err
	}()
	until(t, "the first waits", func() bool { return see.waiters(t, name) == 1 })
	timesOut := lockLater(client, name, Wait(1500*time.Millisecond))
	until(t, "the second waits", func() bool { return see.waiters(t, name) == 2 })
	behind := lockLater(client, name, Wait(20*time.Second))
	until(t, "the third waits", func() bool { return see.waiters(t, name) == 3 })
	cancel()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	as[*HeldError](t, (<-timesOut).err)
	must(t, held.Release())
	begun := now()
	must(t, leaseOf(t, behind).Release())
	if took := now() - begun; took > 5*time.Second {
		t.Fatal(took)
	}
}

func TestACloseEndsWaitsAndReleasesWhatIsHeld(t *testing.T) {
	t.Parallel()
	name := newName()
	client, err := New(Config{Servers: urls(t)})
	must(t, err)
	lease := mustLock(t, client, name)
	waiting := lockLater(client, name)
	until(t, "it waits", func() bool { return observer(urls(t)[0]).waiters(t, name) == 1 })
	must(t, client.Close())
	if got := <-waiting; !errors.Is(got.err, ErrClosed) {
		t.Fatal(got)
	}
	if observer(urls(t)[0]).held(t, name) || context.Cause(lease.Context()) != ErrReleased {
		t.Fatal("it is held")
	}
	if _, err := client.Lock(context.Background(), name); err != ErrClosed {
		t.Fatal(err)
	}
}

func TestAClientThatHoldsNothingHasNoGoroutine(t *testing.T) {
	client, name := newClient(t, urls(t)...), newName()
	before := runtime.NumGoroutine()
	for range 20 {
		lease := mustLock(t, client, name)
		lease.OnLost(func(*LostError) {})
		must(t, lease.Release())
	}
	client.transport.http.CloseIdleConnections()
	until(t, "its goroutines end", func() bool { return runtime.NumGoroutine() <= before })
}

func TestS44_ALeaseThatWasOverWhenItsAnswerWasReadIsNoLease(t *testing.T) {
	t.Parallel()
	name, proxy := newName(), newFault(t, urls(t)[0])
	var once sync.Once
	proxy.cut = func(path string, answer map[string]any) bool {
		if answer["lease_id"] != nil {
			once.Do(func() { time.Sleep(700 * time.Millisecond) })
		}
		return false
	}
	lease := mustLock(t, newClient(t, proxy.URL), name, TTL(500*time.Millisecond), Wait(10*time.Second))
	must(t, lease.Check())
	if count, _ := proxy.requests("/v1/locks/" + name + "/acquire"); count < 2 {
		t.Fatal(count)
	}
	must(t, lease.Release())
}
