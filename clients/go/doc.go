// Package quorate is the client of Quorate: locks, semaphores and leader election that a majority of Redis nodes
// grants, renewed in the background, with the loss of a lease noticed in time.
//
//	client, err := quorate.New(quorate.Config{}) // QUORATE_SERVER, QUORATE_API_KEY
//	if err != nil {
//		return err
//	}
//	defer client.Close() // releases what is still held
//
//	lease, err := client.Lock(ctx, "orders:42", quorate.TTL(30*time.Second), quorate.Wait(10*time.Second))
//	if err != nil {
//		return err
//	}
//	err = charge(lease.Context(), lease.FencingToken())
//	return errors.Join(err, lease.Release())
//
// or, as a function that runs under the lock:
//
//	err = client.WithLock(ctx, "orders:42", func(ctx context.Context, lease *quorate.Lease) error {
//		return charge(ctx, lease.FencingToken())
//	})
//
// # The end of a lease
//
// A lease is renewed at a third of its ttl until it is released. It is lost as soon as a server says so, and at the
// latest when its validity ends by a monotonic clock that also counts the time in suspend (on Linux; elsewhere Go's
// monotonic clock). Then [Lease.Context] is cancelled with a [*LostError] as its cause, [Lease.Check] returns it, and so
// does [Lease.Release]. Work under a lock should use that context, and send [Lease.FencingToken] with every write.
//
// # Errors
//
// [*HeldError] says that somebody else holds it, and who. [*UnavailableError] says that nobody can know: no server, or
// no quorum of nodes. Use [errors.As] to tell them apart.
//
// # Waiting and cancelling
//
// An acquisition waits for as long as [Wait] says, or without it until its context is done. [Wait](0) is one attempt.
// The context also bounds the work: [Lease.Context] is derived from it. However an acquisition ends but by a lease,
// it leaves nothing behind.
package quorate
