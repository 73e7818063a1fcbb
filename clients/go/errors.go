package quorate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"example.com/quorate/clients/go/api"
)

// ErrReleased is the cause with which the context of a lease ends that was released in time.
var ErrReleased = errors.New("quorate: the lease was released")

// ErrClosed is the error of calls on a client that was closed.
var ErrClosed = errors.New("quorate: the client is closed")

// Refusal is what all errors of this package have: the API's code, and all that the server said.
type Refusal struct {
	// Code is the API's code, such as lock_held; no_server where no server gave an answer.
	Code string
	// Problem is the answer of the server; only Code and Detail are set where there was none.
	Problem api.Problem

	target string
	cause  error
}

func (r *Refusal) Error() string {
	text := "quorate: "
	if r.target != "" {
		text += r.target + ": "
	}
	text += r.Code
	if r.Problem.Detail != "" {
		text += ": " + r.Problem.Detail
	}
	return text
}

// Unwrap returns the error of the network, if it was one.
func (r *Refusal) Unwrap() error { return r.cause }

// As lets errors.As find the Refusal of any kind of error.
func (r *Refusal) As(target any) bool {
	found, ok := target.(**Refusal)
	if ok {
		*found = r
	}
	return ok
}

// Nodes returns the tally of the nodes' answers, or nil where the server gave none.
func (r *Refusal) Nodes() *api.Nodes { return r.Problem.Nodes }

// RetryAfter returns when to try again, and whether the server said it.
func (r *Refusal) RetryAfter() (time.Duration, bool) {
	if r.Problem.RetryAfterMs == nil || *r.Problem.RetryAfterMs < 0 {
		return 0, false
	}
	return time.Duration(*r.Problem.RetryAfterMs) * time.Millisecond, true
}

func (r *Refusal) setTarget(t target) {
	if r.target == "" {
		r.target = t.String()
	}
}

// HeldError says that somebody else holds it, and did for as long as was waited: lock_held, semaphore_full,
// election_lost.
type HeldError struct{ Refusal }

// Holder returns who holds it. It is nil for shared leases and semaphores, and while no single lease has a quorum.
func (e *HeldError) Holder() *api.Holder { return e.Problem.Holder }

// Holders returns all that are known to hold it.
func (e *HeldError) Holders() []api.Holder {
	if len(e.Problem.Holders) == 0 && e.Problem.Holder != nil {
		return []api.Holder{*e.Problem.Holder}
	}
	return e.Problem.Holders
}

// UnavailableError says that it cannot be known or had at the moment: no server, no quorum of nodes, or too many wait.
type UnavailableError struct {
	Refusal
	broken    bool // The connection broke: it may be an idle one that the server closed.
	elsewhere bool // Another server may do better.
}

// LostError says that a lease ended before it was released: lease_lost (a server said it), lease_expired (its validity
// was over before a server extended it), hold_limit_reached (its MaxHold was over).
type LostError struct{ Refusal }

// StaleError says that a later token has been issued: do not write.
type StaleError struct{ Refusal }

// InvalidError says that the API does not take a value.
type InvalidError struct{ Refusal }

// Fields says which fields, and why.
func (e *InvalidError) Fields() []api.FieldError { return e.Problem.Errors }

// ForbiddenError says that the key is missing, unknown, or may not do this: unauthenticated, forbidden.
type ForbiddenError struct{ Refusal }

// ofProblem returns the error of an answer that is not 2xx. The problem has no code where the body was none (a
// proxy's page).
func ofProblem(status int, problem api.Problem) error {
	if problem.Code == "" {
		problem.Code = fmt.Sprintf("http_%d", status)
	}
	refusal := Refusal{Code: problem.Code, Problem: problem}
	switch problem.Code {
	case "lock_held", "semaphore_full", "election_lost":
		return &HeldError{refusal}
	case "lease_lost", "hold_limit_reached":
		return &LostError{refusal}
	case "stale_token":
		return &StaleError{refusal}
	case "invalid_request":
		return &InvalidError{refusal}
	}
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return &ForbiddenError{refusal}
	case http.StatusTooManyRequests:
		return &UnavailableError{Refusal: refusal}
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return &UnavailableError{Refusal: refusal, elsewhere: true}
	}
	return &refusal
}

// invalid is an error that is found before anything is sent.
func invalid(field, message string) error {
	return &InvalidError{Refusal{Code: "invalid_request", Problem: api.Problem{
		Code: "invalid_request", Detail: field + ": " + message, Errors: []api.FieldError{{Field: field, Message: message}},
	}}}
}

func lost(t target, code, detail string, problem api.Problem) *LostError {
	problem.Code, problem.Detail = code, detail
	return &LostError{Refusal{Code: code, Problem: problem, target: t.String()}}
}

// interrupted is the error of an acquisition whose context ended: it is that of the context, and the last refusal.
func interrupted(ctx context.Context, t target, last error) error {
	err := fmt.Errorf("quorate: %s: %w", t, ctx.Err())
	if cause := context.Cause(ctx); cause != ctx.Err() {
		err = fmt.Errorf("quorate: %s: %w: %w", t, ctx.Err(), cause)
	}
	if last != nil {
		err = fmt.Errorf("%w (at last: %w)", err, last)
	}
	return err
}
