package quorate

import (
	"context"
	"errors"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

const defaultServer = "http://127.0.0.1:8080"

// servers are the URLs, and which of them the client is with: each server has a queue of its own.
type servers struct {
	mu   sync.Mutex
	urls []string
	at   int
}

func newServers(given []string) (*servers, error) {
	if len(given) == 0 {
		given = []string{os.Getenv("QUORATE_SERVER")}
	}
	var urls []string
	for _, one := range strings.Split(strings.Join(given, ","), ",") {
		one = strings.TrimRight(strings.TrimSpace(one), "/")
		if one == "" {
			continue
		}
		parsed, err := url.Parse(one)
		if err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
			return nil, invalid("servers", "a URL begins with http:// or https://, and has a host")
		}
		urls = append(urls, one)
	}
	if len(urls) == 0 {
		urls = []string{defaultServer}
	}
	return &servers{urls: urls}, nil
}

func (s *servers) current() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.urls[s.at]
}

// leave goes on to the next one, unless that has been done.
func (s *servers) leave(server string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.urls[s.at] == server {
		s.at = (s.at + 1) % len(s.urls)
	}
}

// stay goes back to a server.
func (s *servers) stay(server string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = slices.Index(s.urls, server)
}

// String leaves passwords out.
func (s *servers) String() string {
	shown := slices.Clone(s.urls)
	for i, one := range shown {
		if parsed, err := url.Parse(one); err == nil {
			shown[i] = parsed.Redacted()
		}
	}
	return strings.Join(shown, ", ")
}

// tour is where one operation has been: it goes from server to server at once, until all have failed it.
type tour struct {
	servers        *servers
	failed, broken map[string]bool
}

func newTour(s *servers) *tour {
	return &tour{s, map[string]bool{}, map[string]bool{}}
}

// goesOn returns whether there is a server to try at once after this failure.
func (t *tour) goesOn(server string, err *UnavailableError) bool {
	if err.broken && !t.broken[server] {
		t.broken[server] = true
		return true
	}
	if !err.elsewhere {
		return false
	}
	t.failed[server] = true
	t.servers.leave(server)
	return !t.failed[t.servers.current()]
}

// answered is for a verdict of a server: whatever failed before may be back.
func (t *tour) answered() {
	clear(t.failed)
	clear(t.broken)
}

// anywhere makes one call, at one server after the other until one answers or the deadline is over.
func (c *Client) anywhere(
	ctx context.Context, deadline time.Duration, method, path string, query url.Values, body, answer any,
) error {
	tour := newTour(c.servers)
	for {
		server := c.servers.current()
		err := c.transport.send(ctx, deadline-now(), server, method, path, query, body, answer)
		var unavailable *UnavailableError
		if !errors.As(err, &unavailable) || !tour.goesOn(server, unavailable) || now() >= deadline {
			return err
		}
	}
}
