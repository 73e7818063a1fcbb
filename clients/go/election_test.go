package quorate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/quorate/clients/go/api"
)

// A candidate writes for each moment at which it believed to lead: the term, and the time by the clock that all
// processes of a machine share.
func init() {
	roles["candidate"] = func(arguments []string) {
		client, err := New(Config{Servers: arguments[:1]})
		if err != nil {
			panic(err)
		}
		defer client.Close()
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			var line string
			_, _ = fmt.Scanln(&line)
			cancel()
		}()
		_ = client.Lead(ctx, arguments[1], arguments[2], func(ctx context.Context, leader *Leadership) error {
			for {
				checked := now()
				if leader.Check() != nil || sleep(ctx, 5*time.Millisecond) != nil {
					return ctx.Err()
				}
				fmt.Println(leader.Term(), int64(checked))
			}
		}, TTL(time.Second))
	}
}

func TestS50_NeverTwoLeadAtOnceByTheirOwnClocks(t *testing.T) {
	t.Parallel()
	type reign struct{ term, from, to int64 }
	var mu sync.Mutex
	reigns := map[int64]*reign{}
	leader := make(chan *process, 1000)
	election, candidates := newName(), map[*process]bool{}
	stand := func() {
		p := startRole(t, "candidate", urls(t)[0], election, fmt.Sprintf("candidate-%d", len(candidates)))
		candidates[p] = true
		go func() {
			for words := p.line(); len(words) == 2; words = p.line() {
				term, _ := strconv.ParseInt(words[0], 10, 64)
				at, _ := strconv.ParseInt(words[1], 10, 64)
				mu.Lock()
				if reigns[term] == nil {
					reigns[term] = &reign{term, at, at}
					leader <- p
				}
				reigns[term].to = at
				mu.Unlock()
			}
		}()
	}
	for range 3 {
		stand()
	}
	for round := range 6 {
		p := <-leader
		time.Sleep(100 * time.Millisecond)
		switch round % 3 {
		case 0:
			_ = p.Process.Kill()
			stand()
		case 1:
			must(t, p.Process.Signal(syscall.SIGSTOP))
			time.AfterFunc(1500*time.Millisecond, func() { _ = p.Process.Signal(syscall.SIGCONT) })
		case 2:
			_, err := fmt.Fprintln(p.in, "resign")
			must(t, err)
			stand()
		}
	}
	<-leader
	mu.Lock()
	defer mu.Unlock()
	var inOrder []*reign
	for _, one := range reigns {
		inOrder = append(inOrder, one)
	}
	slices.SortFunc(inOrder, func(a, b *reign) int { return int(a.from - b.from) })
	for i, one := range inOrder[1:] {
		if before := inOrder[i]; before.to >= one.from || before.term >= one.term {
			t.Errorf("%+v and then %+v", before, one)
		}
	}
	if len(inOrder) < 7 {
		t.Error(len(inOrder))
	}
}

func TestS51_TheNextCandidateLeadsAtOnceWhenAFunctionReturns(t *testing.T) {
	t.Parallel()
	client, election, mine := newClient(t, urls(t)...), newName(), errors.New("mine")
	leads, goes, first := make(chan int64, 1), make(chan struct{}), make(chan error, 1)
	go func() {
		first <- client.Lead(context.Background(), election, "first", func(_ context.Context, leader *Leadership) error {
			leads <- leader.Term()
			<-goes
			return mine
		}, TTL(time.Minute))
	}()
	before := <-leads
	second := make(chan error, 1)
	go func() {
		second <- client.Lead(context.Background(), election, "second", func(_ context.Context, leader *Leadership) error {
			leads <- leader.Term()
			return nil
		})
	}()
	close(goes)
	if err := <-first; !errors.Is(err, mine) {
		t.Fatal(err)
	}
	if <-leads <= before {
		t.Fatal("the term is not greater")
	}
	must(t, <-second)
}

func TestALeaderThatLostItsTermStandsAgain(t *testing.T) {
	t.Parallel()
	client, election := newClient(t, urls(t)...), newName()
	terms := 0
	must(t, client.Lead(context.Background(), election, "one", func(ctx context.Context, leader *Leadership) error {
		if terms++; terms == 2 {
			return nil
		}
		_, err := client.API().Resign(ctx, election, api.Release{LeaseID: leader.answer.LeaseID})
		must(t, err)
		<-ctx.Done()
		return ctx.Err()
	}, TTL(time.Second)))
	if terms != 2 {
		t.Fatal(terms)
	}
}

func TestS52_AnObserverSeesEachChangeInOrderAndSurvivesItsServer(t *testing.T) {
	t.Parallel()
	d, election := ownDeployment(t), newName()
	a, b := d.serve(t), d.serve(t)
	ctx, cancel := context.WithCancel(context.Background())
	client, seen := newClient(t, a.url, b.url), make(chan *api.ElectionState)
	client.piece.Store(int64(100 * time.Millisecond))
	var ended error
	go func() {
		defer close(seen)
		for state, err := range client.ObserveElection(ctx, election) {
			if ended = err; err == nil {
				seen <- state
			}
		}
	}()
	next := func(leader, value string) {
		t.Helper()
		if state := <-seen; state.Leader != leader || state.Value != value {
			t.Fatalf("%+v", state)
		}
	}
	campaigner := newClient(t, b.url)
	next("", "")
	first, err := campaigner.Campaign(ctx, election, "first", Value("at:1"))
	must(t, err)
	next("first", "at:1")
	must(t, first.Proclaim(ctx, "at:2"))
	next("first", "at:2")
	time.Sleep(300 * time.Millisecond) // Polls without a change are none.
	a.kill()
	must(t, first.Release())
	next("", "")
	second, err := campaigner.Campaign(ctx, election, "second")
	must(t, err)
	next("second", "")
	must(t, second.Release())
	next("", "")
	cancel()
	if _, more := <-seen; more || !errors.Is(ended, context.Canceled) {
		t.Fatal(ended)
	}
}

func TestS73_BecameAndLostAreCalledInTurn(t *testing.T) {
	t.Parallel()
	election := newName()
	var mu sync.Mutex
	var told []string
	tell := func(what string) func(int64) {
		return func(term int64) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, what)
		}
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(told)
	}
	var group sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		ctx, cancel := context.WithCancel(context.Background())
		client := newClient(t, urls(t)...)
		group.Go(func() {
			err := client.LeadWithHooks(ctx, election, name, tell("became"), tell("lost"))
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		// Whoever it is resigns as soon as it leads; the next one is already standing.
		defer cancel()
		time.AfterFunc(300*time.Millisecond, func() {
			for count() == 0 {
				time.Sleep(time.Millisecond)
			}
			cancel()
		})
	}
	group.Wait()
	mu.Lock()
	defer mu.Unlock()
	for i, what := range told {
		if (what == "became") != (i%2 == 0) {
			t.Fatal(told)
		}
	}
	if len(told) < 2 || len(told)%2 != 0 {
		t.Fatal(told)
	}
}
