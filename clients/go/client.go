package quorate

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/quorate/clients/go/api"
)

// Config says which servers a client uses, and how. The zero value takes all from the environment.
type Config struct {
	// Servers are the URLs of the servers; otherwise QUORATE_SERVER, one or several with commas, otherwise
	// http://127.0.0.1:8080. The client stays with one while it answers.
	Servers []string
	// APIKey is sent with each request; otherwise QUORATE_API_KEY.
	APIKey string `json:"-"`
	// Owner is the label that others see, for all leases that have no other.
	Owner string
	// TLS is for servers with a CA of their own and for client certificates; otherwise QUORATE_CA and
	// QUORATE_CLIENT_CERT name files that are used besides the system's CAs.
	TLS *tls.Config `json:"-"`
	// Proxy is as in http.Transport; otherwise HTTPS_PROXY and its like.
	Proxy func(*http.Request) (*url.URL, error) `json:"-"`
}

// String leaves the key out.
func (c Config) String() string { return "quorate.Config" }

// GoString leaves the key out.
func (c Config) GoString() string { return c.String() }

// Client acquires leases and renews them. Any number of goroutines can use one.
type Client struct {
	servers   *servers
	transport *transport
	keeper    *keeper
	owner     string
	piece     atomic.Int64 // the length of a request of a longer wait

	mu      sync.Mutex
	closed  bool
	closing context.Context // ends when Close begins
	close   context.CancelCauseFunc
	running sync.WaitGroup // acquisitions, and what undoes them
}

// New returns a client. Nothing is sent yet.
func New(config Config) (*Client, error) {
	servers, err := newServers(config.Servers)
	if err != nil {
		return nil, err
	}
	transport, err := newTransport(config)
	if err != nil {
		return nil, err
	}
	client := &Client{servers: servers, transport: transport, owner: config.Owner}
	client.keeper = newKeeper(servers, transport)
	client.piece.Store(int64(longestPiece))
	client.closing, client.close = context.WithCancelCause(context.Background())
	return client, nil
}

// String leaves the key out.
func (c *Client) String() string { return "quorate.Client of " + c.servers.String() }

// GoString leaves the key out.
func (c *Client) GoString() string { return c.String() }

// Close ends the acquisitions that are under way, and releases what is still held. It returns a *LostError for each
// lease that was not held any more.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.close(ErrClosed)
	c.running.Wait()
	err := releaseAll(c.keeper.leases())
	c.transport.http.CloseIdleConnections()
	return err
}

func releaseAll(leases []*Lease) error {
	const atOnce = 32
	var group sync.WaitGroup
	results, places := make([]error, len(leases)), make(chan struct{}, atOnce)
	for i, lease := range leases {
		group.Add(1)
		places <- struct{}{}
		go func() {
			defer group.Done()
			results[i] = lease.Release()
			<-places
		}()
	}
	group.Wait()
	return errors.Join(results...)
}

// begin returns a context that also ends with the client, and what is to be called at the end.
func (c *Client) begin(ctx context.Context) (context.Context, func(), error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, ErrClosed
	}
	c.running.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.closing, func() { cancel(ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		c.running.Done()
	}, nil
}

// API makes every call of the API as it is: to look at locks, issue tokens, list nodes and so on. A call that gets no
// answer is tried at the next server; to acquire by it, give a request id.
func (c *Client) API() api.Calls {
	return api.NewCalls(func(
		ctx context.Context, method, path string, query url.Values, body any, wait int64, answer any,
	) error {
		deadline := now() + answerTimeout + time.Duration(wait)*time.Millisecond
		return c.anywhere(ctx, deadline, method, path, query, body, answer)
	})
}

// Lock acquires a lock.
func (c *Client) Lock(ctx context.Context, name string, options ...Option) (*Lease, error) {
	want, err := c.want(map[string]any{}, options, "lock", name)
	if err != nil {
		return nil, err
	}
	return c.acquire(ctx, want)
}

// Locks acquires all of these locks or none, by one lease; the order of names does not matter.
func (c *Client) Locks(ctx context.Context, names []string, options ...Option) (*Lease, error) {
	if len(names) == 1 {
		return c.Lock(ctx, names[0], options...)
	}
	want, err := c.want(map[string]any{}, options, "multilock", names...)
	if err != nil {
		return nil, err
	}
	return c.acquire(ctx, want)
}

// Semaphore acquires a permit, or several, of the limit that may be held at once. All who use a semaphore should say
// the same limit.
func (c *Client) Semaphore(ctx context.Context, name string, limit int, options ...Option) (*Lease, error) {
	want, err := c.want(map[string]any{"limit": limit}, options, "semaphore", name)
	if err != nil {
		return nil, err
	}
	return c.acquire(ctx, want)
}

// RateLimit returns nil when this call is one of at most limit in any window of this length.
func (c *Client) RateLimit(ctx context.Context, name string, limit int, per time.Duration, options ...Option) error {
	lease, err := c.Semaphore(ctx, name, limit, slices.Concat(options, []Option{TTL(per)})...)
	if err != nil {
		return err
	}
	lease.forget() // A permit that nobody renews or releases counts for its ttl.
	return nil
}

// Campaign waits until this candidate leads. Lead is the same as a loop.
func (c *Client) Campaign(ctx context.Context, election, candidate string, options ...Option) (*Leadership, error) {
	want, err := c.want(map[string]any{"candidate": candidate}, options, "election", election)
	if err != nil {
		return nil, err
	}
	lease, err := c.acquire(ctx, want)
	if err != nil {
		return nil, err
	}
	return &Leadership{lease}, nil
}
