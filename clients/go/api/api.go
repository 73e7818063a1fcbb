// Package api has the types of the HTTP API and a method for each of its calls, as the OpenAPI document has them.
package api

import (
	"context"
	"net/url"
)

// Calls makes the calls; Client.API of package quorate has one.
type Calls struct {
	send Sender
}

// Sender sends one request and decodes its answer. The answer may come as late as wait milliseconds allow.
type Sender func(ctx context.Context, method, path string, query url.Values, body any, wait int64, answer any) error

// NewCalls returns calls that are made by send.
func NewCalls(send Sender) Calls {
	return Calls{send}
}

func (c Calls) call(
	ctx context.Context, method, path string, query url.Values, body any, wait *int64, answer any,
) error {
	milliseconds := int64(0)
	if wait != nil {
		milliseconds = *wait
	}
	return c.send(ctx, method, path, query, body, milliseconds, answer)
}
