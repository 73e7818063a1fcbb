package quorate

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// roles are what this binary does when it is started as a process of a test.
var roles = map[string]func(arguments []string){}

func TestMain(m *testing.M) {
	if role, ok := roles[os.Getenv("QUORATE_TEST_ROLE")]; ok {
		role(os.Args[1:])
		return
	}
	if binary() == "" {
		fmt.Println("QUORATE_BIN names the binary of the server to test against")
		os.Exit(1)
	}
	for _, setting := range []string{"QUORATE_API_KEY", "QUORATE_SERVER", "QUORATE_CA", "QUORATE_CLIENT_CERT"} {
		os.Unsetenv(setting)
	}
	// The examples find their servers by it.
	os.Setenv("QUORATE_SERVER", strings.Join(urls(beforeTests{}), ","))
	status := m.Run()
	shared.d.end()
	os.Exit(status)
}

// beforeTests ends the process where a test would fail.
type beforeTests struct{ testing.TB }

func (beforeTests) Helper() {}

func (beforeTests) Fatal(arguments ...any) {
	fmt.Println(arguments...)
	os.Exit(1)
}

func (beforeTests) Fatalf(format string, arguments ...any) {
	beforeTests{}.Fatal(fmt.Sprintf(format, arguments...))
}

// process is this binary in a role of its own.
type process struct {
	*exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

func startRole(t testing.TB, role string, arguments ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(os.Args[0], arguments...)}
	p.Env = append(os.Environ(), "QUORATE_TEST_ROLE="+role)
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	must(t, err)
	p.in, err = p.StdinPipe()
	must(t, err)
	must(t, start(p.Cmd))
	p.lines = bufio.NewScanner(out)
	// What hangs is ended, and then says no more.
	limit := time.AfterFunc(time.Minute, func() { _ = p.Process.Kill() })
	t.Cleanup(func() {
		limit.Stop()
		_ = p.Process.Kill()
	})
	return p
}

// line returns the words of the next line; none at the end.
func (p *process) line() []string {
	if !p.lines.Scan() {
		return nil
	}
	return strings.Fields(p.lines.Text())
}

func newClient(t testing.TB, servers ...string) *Client {
	t.Helper()
	return newClientOf(t, Config{Servers: servers})
}

func newClientOf(t testing.TB, config Config) *Client {
	t.Helper()
	client, err := New(config)
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func newName() string { return "test:" + strings.ToLower(rand.Text()) }

func mustLock(t testing.TB, client *Client, name string, options ...Option) *Lease {
	t.Helper()
	lease, err := client.Lock(context.Background(), name, options...)
	must(t, err)
	return lease
}

// as returns the error as a kind, which it has to be.
func as[E error](t testing.TB, err error) E {
	t.Helper()
	var kind E
	if !errors.As(err, &kind) {
		t.Fatalf("%T, not %T: %v", err, kind, err)
	}
	return kind
}
