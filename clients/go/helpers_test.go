package quorate

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/quorate/clients/go/api"
)

func TestS70_WithLocksLetsOneInAtATime(t *testing.T) {
	t.Parallel()
	a, b, inside := newName(), newName(), 0
	mine := errors.New("mine")
	var group sync.WaitGroup
	for i := range 10 {
		client := newClient(t, urls(t)...)
		names := [][]string{{a, b}, {b, a}, {a, b, newName()}}[i%3]
		group.Go(func() {
			err := client.WithLocks(context.Background(), names, func(context.Context, *Lease) error {
				inside++
				return mine
			}, Wait(30*time.Second))
			if !errors.Is(err, mine) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if inside != 10 {
		t.Fatal(inside)
	}
}

func TestS71_TryWithLockSaysWhetherItRan(t *testing.T) {
	t.Parallel()
	client, ctx, name := newClient(t, urls(t)...), context.Background(), newName()
	run := func(context.Context, *Lease) error { return nil }
	lease := mustLock(t, client, name)
	if ran, err := client.TryWithLock(ctx, name, run); ran || err != nil {
		t.Fatal(ran, err)
	}
	must(t, lease.Release())
	if ran, err := client.TryWithLock(ctx, name, run); !ran || err != nil {
		t.Fatal(ran, err)
	}
	ran, err := newClient(t, "http://127.0.0.1:1").TryWithLock(ctx, name, run)
	if as[*UnavailableError](t, err); ran {
		t.Fatal("it ran without a server")
	}
}

func TestS72_AnEventIsProcessedOnce(t *testing.T) {
	t.Parallel()
	client, ctx, event := newClient(t, urls(t)...), context.Background(), newName()
	var marks sync.Map
	var processed atomic.Int64
	deliver := func(failure error) (Outcome, error) {
		return client.Idempotent(ctx, event, func(context.Context) (bool, error) {
			_, known := marks.Load(event)
			return known, nil
		}, func(_ context.Context, lease *Lease) error {
			if failure != nil {
				return failure
			}
			processed.Add(1)
			marks.Store(event, lease.FencingToken())
			return nil
		})
	}
	broken := errors.New("broken")
	if outcome, err := deliver(broken); outcome != "" || !errors.Is(err, broken) {
		t.Fatal(outcome, err)
	}
	outcomes := make(chan Outcome, 6)
	for range 6 {
		go func() {
			outcome, err := deliver(nil)
			if err != nil {
				t.Error(err)
			}
			outcomes <- outcome
		}()
	}
	counts := map[Outcome]int{}
	for range 6 {
		counts[<-outcomes]++
	}
	if processed.Load() != 1 || counts[Processed] != 1 || counts[AlreadyProcessed]+counts[Duplicate] != 5 {
		t.Fatal(counts)
	}
	if outcome, err := deliver(nil); outcome != AlreadyProcessed || err != nil {
		t.Fatal(outcome, err)
	}
}

func init() {
	roles["singleton"] = func(arguments []string) {
		client, err := New(Config{Servers: arguments[:1]})
		if err != nil {
			panic(err)
		}
		defer client.Close()
		_ = client.Singleton(context.Background(), arguments[1], func(ctx context.Context, _ *Lease) error {
			fmt.Println("runs")
			<-ctx.Done()
			return ctx.Err()
		}, TTL(time.Second))
	}
}

func TestS74_ASingletonRunsInOneProcessAndAnotherTakesOver(t *testing.T) {
	t.Parallel()
	name := newName()
	first := startRole(t, "singleton", urls(t)[0], name)
	if words := first.line(); len(words) != 1 {
		t.Fatal(words)
	}
	second := startRole(t, "singleton", urls(t)[0], name)
	runs := make(chan []string, 1)
	go func() { runs <- second.line() }()
	until(t, "the second stands by", func() bool { return observer(urls(t)[0]).waiters(t, name) == 1 })
	if len(runs) > 0 {
		t.Fatal("both run")
	}
	must(t, first.Process.Kill())
	if words := <-runs; len(words) != 1 {
		t.Fatal(words)
	}
}

func TestS75_ALateWriterChangesNothing(t *testing.T) {
	if _, err := exec.LookPath("sqlite3"); err != nil {
		t.Skip("no sqlite3 to write with")
	}
	t.Parallel()
	client, name, file := newClient(t, urls(t)...), newName(), filepath.Join(t.TempDir(), "db")
	sql := func(statement string) string {
		t.Helper()
		out, err := exec.Command("sqlite3", file, statement).CombinedOutput()
		if err != nil {
			t.Fatal(string(out))
		}
		return strings.TrimSpace(string(out))
	}
	sql("CREATE TABLE documents (text TEXT, fence_token INTEGER); INSERT INTO documents VALUES ('empty', 0)")
	write := func(text string, token int64) string {
		return sql(fmt.Sprintf("UPDATE documents SET text = '%s', fence_token = %d WHERE fence_token < %d; SELECT changes()",
			text, token, token))
	}
	late := mustLock(t, client, name)
	observer(urls(t)[0]).forceRelease(t, name)
	next := mustLock(t, client, name)
	if changed := write("by the next", next.FencingToken()); changed != "1" {
		t.Fatal(changed)
	}
	if changed := write("by the late one", late.FencingToken()); changed != "0" {
		t.Fatal(changed)
	}
	if text := sql("SELECT text FROM documents"); text != "by the next" {
		t.Fatal(text)
	}
	must(t, next.Release())
	as[*LostError](t, late.Release())
}

func TestWhatIsReadOfALeaseIsInTheDocument(t *testing.T) {
	known := map[string]reflect.Type{}
	for _, lease := range []any{api.Lease{}, api.MultilockLease{}, api.SemaphoreLease{}, api.Leadership{}} {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(lease)) {
			known[strings.Split(field.Tag.Get("json"), ",")[0]] = field.Type
		}
	}
	for _, field := range reflect.VisibleFields(reflect.TypeOf(granted{})) {
		if tag := field.Tag.Get("json"); known[tag] != field.Type {
			t.Errorf("%s is %v in the document", tag, known[tag])
		}
	}
}
