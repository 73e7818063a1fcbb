package quorate

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"example.com/quorate/clients/go/api"
)

const (
	connectTimeout = 3 * time.Second
	answerTimeout  = 10 * time.Second
	longestAnswer  = 64 << 20
)

var (
	errNoJSON   = errors.New("the answer is not that of a server")
	errNoAnswer = errors.New("no answer in time")
)

// transport sends one request to one server, and says what became of it.
type transport struct {
	http    *http.Client
	headers http.Header
}

func newTransport(config Config) (*transport, error) {
	settings, err := tlsSettings(config.TLS)
	if err != nil {
		return nil, err
	}
	proxy := config.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	headers := http.Header{"User-Agent": {"quorate-go/" + api.Version}, "Accept": {"application/json"}}
	if config.APIKey == "" {
		config.APIKey = os.Getenv("QUORATE_API_KEY")
	}
	if config.APIKey != "" {
		headers.Set("Authorization", "Bearer "+config.APIKey)
	}
	dialer := &net.Dialer{Timeout: connectTimeout}
	return &transport{headers: headers, http: &http.Client{
		// HTTP/1.1: a request that is given up closes its connection, by which the server notices it.
		Transport: &http.Transport{
			Proxy: proxy, DialContext: dialer.DialContext, TLSClientConfig: settings, TLSHandshakeTimeout: connectTimeout,
			MaxIdleConnsPerHost: 100, IdleConnTimeout: time.Minute, // A server closes a connection that was idle for 75 s.
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// tlsSettings adds what QUORATE_CA and QUORATE_CLIENT_CERT say, which are the same as for the commands.
func tlsSettings(given *tls.Config) (*tls.Config, error) {
	if given != nil {
		return given.Clone(), nil
	}
	settings := &tls.Config{}
	if file := os.Getenv("QUORATE_CA"); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("quorate: QUORATE_CA: %w", err)
		}
		if settings.RootCAs, err = x509.SystemCertPool(); err != nil {
			settings.RootCAs = x509.NewCertPool()
		}
		if !settings.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("quorate: QUORATE_CA: %s has no certificate", file)
		}
	}
	if file := os.Getenv("QUORATE_CLIENT_CERT"); file != "" {
		certificate, err := tls.LoadX509KeyPair(file, file)
		if err != nil {
			return nil, fmt.Errorf("quorate: QUORATE_CLIENT_CERT: %w", err)
		}
		settings.Certificates = []tls.Certificate{certificate}
	}
	return settings, nil
}

// send returns the context's own error where it ends, and an UnavailableError for whatever another try may bring.
func (t *transport) send(
	ctx context.Context, timeout time.Duration, server, method, path string, query url.Values, body, answer any,
) error {
	limited, cancel := context.WithTimeout(ctx, max(timeout, time.Millisecond))
	defer cancel()
	content, err := t.roundTrip(limited, server, method, path, query, body, answer)
	if err == nil || content {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return unreachable(server, err)
}

// roundTrip also returns whether the error is that of an answer.
func (t *transport) roundTrip(
	ctx context.Context, server, method, path string, query url.Values, body, answer any,
) (bool, error) {
	var encoded io.Reader = http.NoBody
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return true, err
		}
		encoded = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, server+path, encoded)
	if err != nil {
		return true, err
	}
	request.URL.RawQuery = query.Encode()
	request.Header = t.headers.Clone()
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := t.http.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, longestAnswer))
	if err != nil {
		return false, err
	}
	if response.StatusCode/100 != 2 {
		return true, refusalOf(response, text)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return false, fmt.Errorf("%w: %w", errNoJSON, err)
	}
	return true, nil
}

func refusalOf(response *http.Response, text []byte) error {
	var problem api.Problem
	// What is no problem is a proxy's page: its status must do.
	if json.Unmarshal(text, &problem) != nil {
		problem = api.Problem{Code: problem.Code, Detail: problem.Detail}
	}
	if seconds, err := strconv.ParseUint(response.Header.Get("Retry-After"), 10, 31); err == nil && problem.RetryAfterMs == nil {
		milliseconds := int64(seconds) * 1000
		problem.RetryAfterMs = &milliseconds
	}
	return ofProblem(response.StatusCode, problem)
}

func unreachable(server string, err error) error {
	var whole *url.Error
	if errors.As(err, &whole) {
		err = whole.Err // It repeats the URL.
	}
	if parsed, bad := url.Parse(server); bad == nil {
		server = parsed.Redacted()
	}
	broken := isBroken(err)
	if errors.Is(err, context.DeadlineExceeded) {
		err = errNoAnswer // It was not the caller's context that ended.
	}
	problem := api.Problem{Code: "no_server", Detail: fmt.Sprintf("%s: %s", server, err)}
	return &UnavailableError{Refusal: Refusal{Code: "no_server", Problem: problem, cause: err}, broken: broken, elsewhere: true}
}

// isBroken tells a connection that broke from one that did not come about.
func isBroken(err error) bool {
	var operation *net.OpError
	if errors.As(err, &operation) {
		return !operation.Timeout() && (operation.Op == "read" || operation.Op == "write")
	}
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var slow interface{ Timeout() bool }
	return !(errors.As(err, &slow) && slow.Timeout()) && !errors.As(err, &certificate) &&
		!errors.As(err, &record) && !errors.Is(err, errNoJSON)
}
