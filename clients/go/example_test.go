package quorate_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	quorate "example.com/quorate/clients/go"
	"example.com/quorate/clients/go/api"
)

// connect is what each program does once. QUORATE_SERVER and QUORATE_API_KEY say where and as whom.
func connect() *quorate.Client {
	client, err := quorate.New(quorate.Config{})
	if err != nil {
		log.Fatal(err)
	}
	return client
}

var ctx = context.Background()

// A lease is renewed until it is released. Work uses its context, and says its token with every write.
func Example() {
	client := connect()
	defer client.Close()

	lease, err := client.Lock(ctx, "example:orders:42", quorate.TTL(30*time.Second), quorate.Wait(10*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("held:", lease.FencingToken() > 0, lease.Context().Err())
	if err := lease.Release(); err != nil {
		log.Fatal("others may have had it meanwhile: ", err)
	}
	fmt.Println("released:", context.Cause(lease.Context()))
	// Output:
	// held: true <nil>
	// released: quorate: the lease was released
}

// Held by somebody else and not to be known are different errors.
func Example_errors() {
	client := connect()
	defer client.Close()
	lease, err := client.Lock(ctx, "example:errors", quorate.Owner("worker-7"))
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()

	_, err = client.Lock(ctx, "example:errors", quorate.Wait(0))
	var held *quorate.HeldError
	var unavailable *quorate.UnavailableError
	switch {
	case errors.As(err, &held):
		fmt.Println("held by", held.Holder().Owner, "says a majority of", held.Nodes().Total)
	case errors.As(err, &unavailable):
		fmt.Println("no quorum, or no server")
	}
	// Output:
	// held by worker-7 says a majority of 3
}

func ExampleClient_WithLock() {
	client := connect()
	defer client.Close()
	err := client.WithLock(ctx, "example:section", func(ctx context.Context, lease *quorate.Lease) error {
		fmt.Println("alone") // ctx ends if the lease is lost
		return nil
	})
	fmt.Println(err)
	// Output:
	// alone
	// <nil>
}

func ExampleClient_TryWithLock() {
	client := connect()
	defer client.Close()
	err := client.WithLock(ctx, "example:report", func(ctx context.Context, _ *quorate.Lease) error {
		ran, err := client.TryWithLock(ctx, "example:report", func(context.Context, *quorate.Lease) error { return nil })
		fmt.Println(ran, err)
		return nil
	})
	fmt.Println(err)
	// Output:
	// false <nil>
	// <nil>
}

// All or none, without a deadlock, whatever the order of names.
func ExampleClient_WithLocks() {
	client := connect()
	defer client.Close()
	balance := map[string]int{"account:1": 100, "account:2": 0}
	transfer := func(from, to string, amount int) error {
		return client.WithLocks(ctx, []string{"example:" + from, "example:" + to}, func(context.Context, *quorate.Lease) error {
			balance[from] -= amount
			balance[to] += amount
			return nil
		})
	}
	var both sync.WaitGroup
	both.Go(func() { _ = transfer("account:1", "account:2", 30) })
	both.Go(func() { _ = transfer("account:2", "account:1", 10) })
	both.Wait()
	fmt.Println(balance)
	// Output:
	// map[account:1:80 account:2:20]
}

// At most three at once, in all processes.
func ExampleClient_Semaphore() {
	client := connect()
	defer client.Close()
	lease, err := client.Semaphore(ctx, "example:gpu", 3, quorate.Permits(2))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(lease.Slots()), "of 3")
	fmt.Println(lease.Release())
	// Output:
	// 2 of 3
	// <nil>
}

// At most two calls a minute, in all processes.
func ExampleClient_RateLimit() {
	client := connect()
	defer client.Close()
	name := fmt.Sprint("example:calls:", time.Now().UnixNano())
	for range 3 {
		err := client.RateLimit(ctx, name, 2, time.Minute, quorate.Wait(0))
		var full *quorate.HeldError
		fmt.Println("may call:", !errors.As(err, &full))
	}
	// Output:
	// may call: true
	// may call: true
	// may call: false
}

// A webhook that is delivered twice is processed once. The mark is written with the effect, in one transaction.
func ExampleClient_Idempotent() {
	client := connect()
	defer client.Close()
	processed := map[string]bool{} // a table, in the database that the effect is in
	deliver := func(event string) (quorate.Outcome, error) {
		return client.Idempotent(ctx, "example:webhook:"+event,
			func(context.Context) (bool, error) { return processed[event], nil },
			func(context.Context, *quorate.Lease) error {
				processed[event] = true
				return nil
			})
	}
	fmt.Println(deliver("invoice-7"))
	fmt.Println(deliver("invoice-7"))
	// Output:
	// processed <nil>
	// already_processed <nil>
}

// One process works, and the others stand by. The function returns by itself here; else it ends with its context.
func ExampleClient_Singleton() {
	client := connect()
	defer client.Close()
	err := client.Singleton(ctx, "example:scheduler", func(ctx context.Context, _ *quorate.Lease) error {
		for step := range 3 {
			if ctx.Err() != nil {
				return ctx.Err() // lost: another one may be at it
			}
			fmt.Println("step", step)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// step 0
	// step 1
	// step 2
	// <nil>
}

func ExampleClient_Lead() {
	client := connect()
	defer client.Close()
	lead := func(ctx context.Context, leader *quorate.Leadership) error {
		fmt.Println("leads, with a term:", leader.Term() > 0)
		return leader.Proclaim(ctx, "10.0.0.7:7001")
	}
	err := client.Lead(ctx, "example:cron", "host-1", lead, quorate.Value("10.0.0.7:7000"))
	fmt.Println(err)
	// Output:
	// leads, with a term: true
	// <nil>
}

func ExampleClient_LeadWithHooks() {
	client := connect()
	defer client.Close()
	ctx, stop := context.WithCancel(ctx)
	err := client.LeadWithHooks(ctx, "example:hooks", "host-1", func(term int64) {
		fmt.Println("became leader")
		stop() // as at the end of the process
	}, func(term int64) {
		fmt.Println("leads no more")
	})
	fmt.Println(err)
	// Output:
	// became leader
	// leads no more
	// context canceled
}

func ExampleClient_ObserveElection() {
	client := connect()
	defer client.Close()
	leader, err := client.Campaign(ctx, "example:observed", "host-1", quorate.Value("10.0.0.7:7000"))
	if err != nil {
		log.Fatal(err)
	}
	defer leader.Release()
	for state, err := range client.ObserveElection(ctx, "example:observed") {
		fmt.Println(state.Leader, state.Value, err)
		break // or go on: each change is the next one
	}
	// Output:
	// host-1 10.0.0.7:7000 <nil>
}

// A process that was paused past the end of its lease may write before it notices. The database refuses that write by
// comparing tokens.
func ExampleLease_FencingToken() {
	save := func(ctx context.Context, db *sql.DB, document int, text string, lease *quorate.Lease) error {
		result, err := db.ExecContext(ctx,
			`UPDATE documents SET text = $1, fence_token = $2 WHERE id = $3 AND fence_token < $2`,
			text, lease.FencingToken(), document)
		if err != nil {
			return err
		}
		if changed, err := result.RowsAffected(); err != nil || changed == 0 {
			return errors.Join(err, errors.New("somebody with a later lease has written"))
		}
		return nil
	}
	_ = save
}

// What must stop at once when the lease is lost watches its context, or asks before a step.
func ExampleLease_Context() {
	client := connect()
	defer client.Close()
	lease, err := client.Lock(ctx, "example:lost")
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()
	if _, err := client.API().ForceReleaseLock(ctx, "example:lost", api.ForceReleaseLockQuery{}); err != nil { // an operator does this
		log.Fatal(err)
	}
	_ = lease.Release() // what follows happens without it, too, by the next renewal
	<-lease.Context().Done()
	var lost *quorate.LostError
	fmt.Println(errors.As(context.Cause(lease.Context()), &lost), lost.Code, lease.Check() != nil)
	// Output:
	// true lease_lost true
}
