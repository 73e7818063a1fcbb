package quorate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"example.com/quorate/clients/go/api"
)

// lasts fails where the lease is lost within this time.
func lasts(t testing.TB, lease *Lease, length time.Duration) {
	t.Helper()
	select {
	case <-lease.Context().Done():
		t.Fatal(context.Cause(lease.Context()))
	case <-time.After(length):
	}
	must(t, lease.Check())
}

func TestS20_ABlockLongerThanItsTTLIsHeldThroughout(t *testing.T) {
	t.Parallel()
	client, name := newClient(t, urls(t)...), newName()
	lease := mustLock(t, client, name, TTL(time.Second))
	for range 6 {
		lasts(t, lease, 500*time.Millisecond)
		if state := observer(urls(t)[0]).lock(t, name); *state.FencingToken != lease.FencingToken() {
			t.Fatal(state)
		}
	}
	must(t, lease.Release())
}

func TestS21_S22_RenewalGoesOnAtTheNextServerAndWithoutANode(t *testing.T) {
	t.Parallel()
	d, name := ownDeployment(t), newName()
	a, b := d.serve(t), d.serve(t)
	lease := mustLock(t, newClient(t, a.url, b.url), name, TTL(2*time.Second))
	a.kill()
	must(t, d.nodes[0].Process.Kill())
	lasts(t, lease, 4*time.Second)
	if !observer(b.url).held(t, name) {
		t.Fatal("it is not held")
	}
	must(t, lease.Release())
}

func TestS23_WithoutAnyServerTheLossIsToldInTime(t *testing.T) {
	t.Parallel()
	server := ownDeployment(t).serve(t)
	lease := mustLock(t, newClient(t, server.url), newName(), TTL(time.Second))
	told := make(chan *LostError, 1)
	lease.OnLost(func(lost *LostError) { told <- lost })
	server.kill()
	ends := lease.validUntil
	<-lease.Context().Done()
	late := now() - ends
	if lost := <-told; lost.Code != "lease_expired" || context.Cause(lease.Context()) != error(lost) {
		t.Fatal(lost)
	}
	if lease.Remaining() != 0 || lease.Check() == nil || late > 500*time.Millisecond {
		t.Fatal(lease, late)
	}
	as[*LostError](t, lease.Release())
}

func TestS24_AForcedReleaseIsALossByTheNextRenewal(t *testing.T) {
	t.Parallel()
	client, name := newClient(t, urls(t)...), newName()
	lease := mustLock(t, client, name, TTL(3*time.Second))
	observer(urls(t)[0]).forceRelease(t, name)
	<-lease.Context().Done()
	lease.mu.Lock()
	over := now() >= lease.validUntil
	lease.mu.Unlock()
	if lost := as[*LostError](t, lease.Release()); lost.Code != "lease_lost" || over {
		t.Fatal(lost, over)
	}
	told := make(chan *LostError)
	lease.OnLost(func(lost *LostError) { told <- lost })
	<-told
}

func TestS24_ALeaseThatWasTakenAwayIsALossWhereItsBlockEnds(t *testing.T) {
	t.Parallel()
	client, name := newClient(t, urls(t)...), newName()
	err := client.WithLock(context.Background(), name, func(context.Context, *Lease) error {
		observer(urls(t)[0]).forceRelease(t, name)
		return nil
	})
	if lost := as[*LostError](t, err); lost.Code != "lease_lost" {
		t.Fatal(err)
	}
}

// The process says when it was resumed, by a timer of its own, and when it noticed the loss: by its context, and by a
// check.
func init() {
	roles["paused"] = func(arguments []string) {
		ttl, _ := time.ParseDuration(arguments[2])
		client, err := New(Config{Servers: []string{arguments[0]}})
		if err != nil {
			panic(err)
		}
		defer client.Close()
		lease, err := client.Lock(context.Background(), arguments[1], TTL(ttl))
		if err != nil {
			panic(err)
		}
		var resumed, noticed atomic.Int64
		before := now() // by the timer, which has to know a moment before the pause
		go func() {
			for ; ; time.Sleep(time.Millisecond) {
				tick := now()
				if tick-before > ttl/2 {
					resumed.CompareAndSwap(0, int64(tick))
				}
				before = tick
			}
		}()
		go func() {
			<-lease.Context().Done()
			noticed.Store(int64(now()))
		}()
		ends := make(chan bool)
		go func() {
			var line string
			_, _ = fmt.Scanln(&line)
			close(ends)
		}()
		fmt.Println("held")
		for {
			select {
			case <-ends:
				fmt.Println("kept", lease.Release())
				return
			case <-time.After(time.Millisecond):
			}
			lease.mu.Lock()
			over := now() >= lease.validUntil
			lease.mu.Unlock()
			err := lease.Check()
			if over && err == nil {
				panic("a check after the end passed")
			}
			if err != nil {
				checked := now()
				for noticed.Load() == 0 || resumed.Load() == 0 {
					time.Sleep(time.Millisecond)
				}
				latest := max(checked, time.Duration(noticed.Load()))
				fmt.Println("lost", (latest - time.Duration(resumed.Load())).Milliseconds(), lease.Release() != nil)
				return
			}
		}
	}
}

func TestS25_APausePastTheTTLIsNoticedAtOnce(t *testing.T) {
	t.Parallel()
	var late []int
	for range 3 { // A busy machine may be slow to resume a process.
		p := startRole(t, "paused", strings.Join(urls(t), ","), newName(), "1s")
		if words := p.line(); len(words) != 1 {
			t.Fatal(words)
		}
		must(t, p.Process.Signal(syscall.SIGSTOP))
		time.Sleep(1300 * time.Millisecond)
		must(t, p.Process.Signal(syscall.SIGCONT))
		words := p.line()
		if len(words) != 3 || words[0] != "lost" || words[2] != "true" {
			t.Fatal(words)
		}
		milliseconds, err := strconv.Atoi(words[1])
		must(t, err)
		late = append(late, milliseconds)
		if milliseconds <= 50 {
			return
		}
	}
	t.Fatalf("noticed %v ms after a timer", late)
}

func TestS26_APauseWithinTheTTLLosesNothing(t *testing.T) {
	t.Parallel()
	p := startRole(t, "paused", strings.Join(urls(t), ","), newName(), "6s")
	p.line()
	must(t, p.Process.Signal(syscall.SIGSTOP))
	time.Sleep(2 * time.Second)
	must(t, p.Process.Signal(syscall.SIGCONT))
	time.Sleep(4500 * time.Millisecond)
	_, err := fmt.Fprintln(p.in, "end")
	must(t, err)
	if words := p.line(); len(words) != 2 || words[0] != "kept" || words[1] != "<nil>" {
		t.Fatal(words)
	}
}

// A step of the wall clock cannot matter where nothing reads it. What is excepted is the reading of Go's monotonic
// clock in clock.go, and the distance to the caller's deadline, which has a monotonic reading.
func TestS27_NothingReadsTheWallClock(t *testing.T) {
	files, err := filepath.Glob("*.go")
	must(t, err)
	readings := map[string]int{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		must(t, err)
		ast.Inspect(parsed, func(node ast.Node) bool {
			if selector, ok := node.(*ast.SelectorExpr); ok {
				if from, ok := selector.X.(*ast.Ident); ok && from.Name == "time" {
					switch selector.Sel.Name {
					case "Now", "Since", "Until", "Unix", "UnixMilli":
						readings[file+" "+selector.Sel.Name]++
					}
				}
			}
			return true
		})
	}
	if len(readings) != 3 || readings["clock.go Now"] != 1 || readings["clock.go Since"] != 1 || readings["acquire.go Until"] != 1 {
		t.Fatal(readings)
	}
}

func TestS28_TheErrorOfTheBodyComesBeforeTheLoss(t *testing.T) {
	t.Parallel()
	client, name, mine := newClient(t, urls(t)...), newName(), errors.New("mine")
	err := client.WithLock(context.Background(), name, func(context.Context, *Lease) error {
		observer(urls(t)[0]).forceRelease(t, name)
		return mine
	})
	if !errors.Is(err, mine) || !strings.HasPrefix(err.Error(), "mine\n") {
		t.Fatal(err)
	}
	as[*LostError](t, err)
	defer func() {
		if recovered := recover(); recovered != mine {
			t.Fatal(recovered)
		}
	}()
	_ = client.WithLock(context.Background(), name, func(context.Context, *Lease) error { panic(mine) })
}

func TestS29_TwoHundredLeasesAreRenewedTogether(t *testing.T) {
	t.Parallel()
	name, proxy := newName(), newFault(t, urls(t)[0])
	client := newClient(t, proxy.URL)
	leases := make([]*Lease, 200)
	var group sync.WaitGroup
	places := make(chan struct{}, 20)
	for i := range leases {
		group.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			lease, err := client.Lock(context.Background(), fmt.Sprintf("%s:%d", name, i), TTL(6*time.Second))
			if err != nil {
				t.Error(err)
			}
			leases[i] = lease
		})
	}
	group.Wait()
	if t.Failed() {
		return
	}
	_, before := proxy.requests("")
	lasts(t, leases[0], 12*time.Second)
	batches, all := proxy.requests("/v1/leases/extend")
	for _, lease := range leases {
		must(t, lease.Check())
	}
	// Six rounds, the first of which may be in several parts.
	if all -= before; batches != all || all == 0 || all >= 10*6 {
		t.Fatal(batches, all)
	}
	must(t, client.Close())
}

func TestS29_ManyLeasesAreRenewedOneByOneWhereTheServerKnowsNoOtherWay(t *testing.T) {
	t.Parallel()
	if batches := renewedOneByOne(t, &api.Problem{Status: 404, Code: "not_found"}); batches != 1 {
		t.Fatal(batches)
	}
}

func TestS29_ManyLeasesAreRenewedOneByOneWhereTheyAreRefusedTogether(t *testing.T) {
	t.Parallel()
	if batches := renewedOneByOne(t, &api.Problem{Status: 413, Code: "payload_too_large"}); batches < 2 {
		t.Fatal(batches)
	}
}

func TestS29_ARenewalOfManyLeasesFitsInABody(t *testing.T) {
	t.Parallel()
	long, short := make([]string, 64), target{"lock", []string{"a"}}
	for i := range long {
		long[i] = fmt.Sprintf("%0200d", i)
	}
	var leases []*Lease
	for range 100 {
		leases = append(leases, &Lease{target: target{"multilock", long}})
	}
	for range 1_200 {
		leases = append(leases, &Lease{target: short})
	}
	seen, requests := 0, 0
	for batch := range batches(leases) {
		var entries []map[string]any
		for _, lease := range batch {
			entries = append(entries, lease.target.entry(strings.Repeat("f", 46)))
		}
		body, err := json.Marshal(map[string]any{"leases": entries})
		must(t, err)
		if len(body) > 256<<10 || len(batch) > 500 {
			t.Fatal(len(body), len(batch))
		}
		seen, requests = seen+len(batch), requests+1
	}
	if seen != len(leases) || requests > 12 {
		t.Fatal(seen, requests)
	}
}

// renewedOneByOne returns how often the extension of many was tried, which is refused, while five leases last.
func renewedOneByOne(t *testing.T, refusal *api.Problem) int {
	name, proxy := newName(), newFault(t, urls(t)[0])
	proxy.before = func(path string) *api.Problem {
		if path == "/v1/leases/extend" {
			return refusal
		}
		return nil
	}
	client := newClient(t, proxy.URL)
	var leases []*Lease
	for i := range 5 {
		leases = append(leases, mustLock(t, client, fmt.Sprintf("%s:%d", name, i), TTL(2*time.Second)))
	}
	lasts(t, leases[0], 4*time.Second)
	for _, lease := range leases {
		must(t, lease.Check())
	}
	batches, _ := proxy.requests("/v1/leases/extend")
	must(t, client.Close())
	if observer(urls(t)[0]).held(t, name+":0") {
		t.Fatal("it is held after the client was closed")
	}
	return batches
}

func TestS30_ASlowServerCostsNoLease(t *testing.T) {
	t.Parallel()
	slow, proxy := make(chan struct{}), newFault(t, urls(t)[0])
	defer close(slow)
	proxy.before = func(path string) *api.Problem {
		if strings.HasSuffix(path, "/extend") {
			<-slow
		}
		return nil
	}
	lease := mustLock(t, newClient(t, proxy.URL, urls(t)[1]), newName(), TTL(2*time.Second))
	lasts(t, lease, 4*time.Second)
	must(t, lease.Release())
}

func TestNothingSecretIsShown(t *testing.T) {
	t.Parallel()
	config := Config{Servers: []string{urls(t)[0]}, APIKey: "the-secret"}
	client := newClientOf(t, config)
	lease := mustLock(t, client, newName())
	defer lease.Release()
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		shown := fmt.Sprintf(format+format+format, config, client, lease)
		if strings.Contains(shown, "the-secret") || strings.Contains(shown, lease.answer.LeaseID) {
			t.Error(shown)
		}
	}
}
