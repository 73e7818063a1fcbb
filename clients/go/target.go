package quorate

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"example.com/quorate/clients/go/api"
)

const longestName = 200

var namePattern = regexp.MustCompile(api.NamePattern)

// target is what a lease is for: a primitive and its name, or names.
type target struct {
	primitive string // lock, multilock, semaphore, election
	names     []string
}

func newTarget(primitive string, names ...string) (target, error) {
	for _, name := range names {
		if len(name) > longestName || !namePattern.MatchString(name) {
			return target{}, invalid("name", fmt.Sprintf("%q is not 1 to 200 characters of A–Z a–z 0–9 . _ ~ : @ -", name))
		}
	}
	if distinct := slices.Compact(slices.Sorted(slices.Values(names))); primitive == "multilock" &&
		(len(names) < 2 || len(names) > 64 || len(distinct) != len(names)) {
		return target{}, invalid("names", "2 to 64, all different")
	}
	return target{primitive, slices.Clone(names)}, nil
}

// path returns the path of a call. The verbs are those of locks.
func (t target) path(verb string) string {
	if t.primitive == "multilock" {
		return "/v1/multilocks/" + verb
	}
	if t.primitive == "election" {
		switch verb {
		case "acquire":
			verb = "campaign"
		case "release":
			verb = "resign"
		}
	}
	return strings.TrimSuffix("/v1/"+t.primitive+"s/"+url.PathEscape(t.names[0])+"/"+verb, "/")
}

// body returns what a call is sent, with the names where its path has none.
func (t target) body(fields map[string]any) map[string]any {
	body := maps.Clone(fields)
	if t.primitive == "multilock" {
		body["names"] = t.names
	}
	return body
}

// entry returns the lease as one of many in a call about several.
func (t target) entry(leaseID string) map[string]any {
	entry := map[string]any{"primitive": t.primitive, "lease_id": leaseID}
	if t.primitive == "multilock" {
		entry["names"] = t.names
	} else {
		entry["name"] = t.names[0]
	}
	return entry
}

// entryBytes returns no less than the length of the entry in a body: names are ASCII.
func (t target) entryBytes() int {
	bytes := 150
	for _, name := range t.names {
		bytes += len(name) + 3
	}
	return bytes
}

func (t target) String() string {
	return t.primitive + " " + strings.Join(t.names, ", ")
}
