package quorate

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/quorate/clients/go/api"
)

// deployment is three redis-servers, and the servers over them.
type deployment struct {
	directory string
	nodes     []*exec.Cmd
	redis     []string
	processes []*exec.Cmd
}

// starts is a thread of its own, with which everything ends that it started.
var starts = sync.OnceValue(func() chan func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for one := range work {
			one()
		}
	}()
	return work
})

func start(command *exec.Cmd) error {
	command.SysProcAttr = endsWithItsParent()
	result := make(chan error)
	starts() <- func() { result <- command.Start() }
	return <-result
}

func newDeployment(t testing.TB) *deployment {
	directory, err := os.MkdirTemp("", "qgo")
	must(t, err)
	d := &deployment{directory: directory}
	for number := range 3 {
		home := filepath.Join(directory, fmt.Sprintf("node-%d", number))
		must(t, os.Mkdir(home, 0o755))
		node := exec.Command("redis-server", "--port", "0", "--unixsocket", home+"/redis", "--save", "",
			"--dir", home, "--maxmemory-policy", "noeviction")
		must(t, start(node))
		d.nodes = append(d.nodes, node)
		d.redis = append(d.redis, "--redis", "unix://"+home+"/redis")
	}
	until(t, "the nodes are marked", func() bool {
		return exec.Command(binary(), append([]string{"init"}, d.redis...)...).Run() == nil
	})
	return d
}

// ownDeployment is that of a test alone, to break things in.
func ownDeployment(t testing.TB) *deployment {
	d := newDeployment(t)
	t.Cleanup(d.end)
	return d
}

func (d *deployment) end() {
	for _, process := range append(d.processes, d.nodes...) {
		_ = process.Process.Kill()
		_ = process.Wait()
	}
	_ = os.RemoveAll(d.directory)
}

type server struct {
	process *exec.Cmd
	url     string
}

var listening = regexp.MustCompile(`(?m)^listening on (\S+)$`)

// serve starts a server, which is ready where it speaks HTTP.
func (d *deployment) serve(t testing.TB, options ...string) *server {
	log, err := os.CreateTemp(d.directory, "server")
	must(t, err)
	defer log.Close()
	arguments := append(append([]string{"serve", "--listen", "127.0.0.1:0"}, d.redis...), options...)
	s := &server{process: exec.Command(binary(), arguments...)}
	s.process.Stdout, s.process.Stderr = log, log
	must(t, start(s.process))
	d.processes = append(d.processes, s.process)
	until(t, "the server listens", func() bool {
		text, _ := os.ReadFile(log.Name())
		found := listening.FindSubmatch(text)
		if found != nil {
			s.url = string(found[1])
		}
		return found != nil
	})
	if strings.HasPrefix(s.url, "http:") {
		until(t, "the server is ready", func() bool {
			answer, err := http.Get(s.url + "/readyz")
			if err != nil {
				return false
			}
			answer.Body.Close()
			return answer.StatusCode == http.StatusOK
		})
	}
	return s
}

func (s *server) kill() {
	_ = s.process.Process.Kill()
	_, _ = s.process.Process.Wait()
}

func (s *server) signal(signal syscall.Signal) { _ = s.process.Process.Signal(signal) }

// sharedServers are two servers for all tests that break nothing.
var shared struct {
	once sync.Once
	d    *deployment
	urls []string
}

func urls(t testing.TB) []string {
	shared.once.Do(func() {
		shared.d = newDeployment(t)
		shared.urls = []string{shared.d.serve(t).url, shared.d.serve(t).url}
	})
	return shared.urls
}

func binary() string { return os.Getenv("QUORATE_BIN") }

// observer asks a server without the client under test.
type observer string

func (o observer) get(t testing.TB, path string, answer any) {
	t.Helper()
	response, err := http.Get(string(o) + path)
	must(t, err)
	defer response.Body.Close()
	must(t, json.NewDecoder(response.Body).Decode(answer))
}

func (o observer) lock(t testing.TB, name string) (state api.LockState) {
	t.Helper()
	o.get(t, "/v1/locks/"+name, &state)
	return state
}

func (o observer) held(t testing.TB, name string) bool     { return o.lock(t, name).Held }
func (o observer) waiters(t testing.TB, name string) int64 { return o.lock(t, name).Waiters }

func (o observer) forceRelease(t testing.TB, name string) {
	t.Helper()
	request, err := http.NewRequest("DELETE", string(o)+"/v1/locks/"+name, nil)
	must(t, err)
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	defer response.Body.Close()
	var answer api.Released
	must(t, json.NewDecoder(response.Body).Decode(&answer))
	if !answer.Released {
		t.Fatalf("%s was not held", name)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until waits for something; if it never comes the test fails.
func until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for ends := time.Now().Add(20 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(ends) {
			t.Fatalf("it did not happen in time that %s", what)
		}
	}
}
