package quorate

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"

	"example.com/quorate/clients/go/api"
)

// fault stands between client and server, also as a proxy, and does to chosen requests what networks do.
type fault struct {
	*httptest.Server
	// before may answer in the server's place, or hold the request up.
	before func(path string) *api.Problem
	// cut says whether an answer is cut off.
	cut func(path string, answer map[string]any) bool

	mu         sync.Mutex
	paths      map[string]int
	requestIDs map[string]bool
}

func newFault(t testing.TB, target string) *fault {
	f := &fault{
		before: func(string) *api.Problem { return nil },
		cut:    func(string, map[string]any) bool { return false },
		paths:  map[string]int{}, requestIDs: map[string]bool{},
	}
	server, err := url.Parse(target)
	must(t, err)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(request *httputil.ProxyRequest) { request.SetURL(server) },
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) {
			panic(http.ErrAbortHandler)
		},
		ModifyResponse: func(response *http.Response) error {
			text, err := io.ReadAll(response.Body)
			if err != nil {
				return err
			}
			answer := map[string]any{}
			_ = json.Unmarshal(text, &answer)
			if f.cut(response.Request.URL.Path, answer) {
				panic(http.ErrAbortHandler)
			}
			response.Body = io.NopCloser(bytes.NewReader(text))
			return nil
		},
	}
	f.Server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		f.count(request)
		problem := f.before(request.URL.Path)
		if problem == nil {
			proxy.ServeHTTP(out, request)
			return
		}
		out.Header().Set("Content-Type", "application/problem+json")
		out.WriteHeader(int(problem.Status))
		_ = json.NewEncoder(out).Encode(problem)
	}))
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

func (f *fault) count(request *http.Request) {
	text, _ := io.ReadAll(request.Body)
	request.Body = io.NopCloser(bytes.NewReader(text))
	var body struct {
		RequestID string `json:"request_id"`
	}
	_ = json.Unmarshal(text, &body)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paths[request.URL.Path]++
	if body.RequestID != "" {
		f.requestIDs[body.RequestID] = true
	}
}

// requests returns how many there were to a path, and in all.
func (f *fault) requests(path string) (there, all int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, count := range f.paths {
		all += count
	}
	return f.paths[path], all
}
