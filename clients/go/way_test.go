package quorate

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// certificate writes a CA and a certificate by it for 127.0.0.1.
func certificate(t *testing.T) (ca, certFile, keyFile string) {
	t.Helper()
	directory := t.TempDir()
	write := func(name, kind string, content []byte) string {
		file := filepath.Join(directory, name)
		must(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600))
		return file
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	signed, err := x509.CreateCertificate(rand.Reader, root, root, &key.PublicKey, key)
	must(t, err)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: root.NotAfter, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	leafSigned, err := x509.CreateCertificate(rand.Reader, leaf, root, &key.PublicKey, key)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	return write("ca.pem", "CERTIFICATE", signed), write("cert.pem", "CERTIFICATE", leafSigned),
		write("key.pem", "PRIVATE KEY", private)
}

func TestS60_AServerWithACAOfItsOwnNeedsThatCA(t *testing.T) {
	ca, cert, key := certificate(t)
	server := ownDeployment(t).serve(t, "--tls-cert", cert, "--tls-key", key)
	if !strings.HasPrefix(server.url, "https:") {
		t.Fatal(server.url)
	}
	name := newName()
	_, err := newClient(t, server.url).Lock(context.Background(), name, Wait(0))
	if refused := as[*UnavailableError](t, err); !strings.Contains(refused.Error(), "certificate") {
		t.Fatal(refused)
	}
	as[*tls.CertificateVerificationError](t, err)
	text, err := os.ReadFile(ca)
	must(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	given := newClientOf(t, Config{Servers: []string{server.url}, TLS: &tls.Config{RootCAs: pool}})
	must(t, mustLock(t, given, name, Wait(0)).Release())
	t.Setenv("QUORATE_CA", ca)
	must(t, mustLock(t, newClient(t, server.url), name, Wait(0)).Release())
	t.Setenv("QUORATE_CA", key)
	if _, err := New(Config{}); err == nil {
		t.Fatal("a CA without a certificate was taken")
	}
}

var printedKey = regexp.MustCompile(`(?m)^quorate_[0-9a-f]+$`)

func TestS61_AKeyThatMayNotIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	made, err := exec.Command(binary(), "keys", "new", "--name", "test", "--scope", "lock", "--scope", "read",
		"--prefix", "mine:").CombinedOutput()
	must(t, err)
	right := string(printedKey.Find(made))
	file := filepath.Join(t.TempDir(), "keys.toml")
	must(t, os.WriteFile(file, made[strings.Index(string(made), "[[key]]"):], 0o600))
	server := ownDeployment(t).serve(t, "--api-keys", file)
	for _, one := range []struct {
		key, name, code string
	}{
		{"", "mine:x", "unauthenticated"}, {"quorate_wrong", "mine:x", "unauthenticated"}, {right, "yours:x", "forbidden"},
	} {
		begun := now()
		client := newClientOf(t, Config{Servers: []string{server.url}, APIKey: one.key})
		_, err := client.Lock(context.Background(), one.name, Wait(time.Minute))
		if refused := as[*ForbiddenError](t, err); refused.Code != one.code || now()-begun > 10*time.Second {
			t.Fatal(refused)
		}
		if one.key != "" && strings.Contains(err.Error(), one.key) {
			t.Fatal("the key is in the error")
		}
	}
	client := newClientOf(t, Config{Servers: []string{server.url}, APIKey: right})
	must(t, mustLock(t, client, "mine:x", Wait(0)).Release())
}

func TestS62_AProxyCanBeBetween(t *testing.T) {
	t.Parallel()
	proxy, name := newFault(t, urls(t)[0]), newName()
	address, err := url.Parse(proxy.URL)
	must(t, err)
	client := newClientOf(t, Config{Servers: []string{"http://quorate.invalid"}, Proxy: http.ProxyURL(address)})
	must(t, mustLock(t, client, name, Wait(0)).Release())
	if _, all := proxy.requests(""); all != 2 {
		t.Fatal(all)
	}
}

func TestServersComeFromTheEnvironment(t *testing.T) {
	t.Setenv("QUORATE_SERVER", " http://a:1/ , https://user:password@b")
	client := newClient(t)
	if shown := client.String(); shown != "quorate.Client of http://a:1, https://user:xxxxx@b" {
		t.Fatal(shown)
	}
	for _, wrong := range []string{"ftp://a", "localhost:8080", "http://"} {
		_, err := New(Config{Servers: []string{wrong}})
		as[*InvalidError](t, err)
	}
}

func TestS16_WhatIsNoServerIsUnavailable(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"a proxy's page":           func(out http.ResponseWriter, _ *http.Request) { http.Error(out, "bad gateway", 502) },
		"a page with status 200":   func(out http.ResponseWriter, _ *http.Request) { _, _ = out.Write([]byte("<html>")) },
		"JSON of something else":   func(out http.ResponseWriter, _ *http.Request) { _, _ = out.Write([]byte(`{"hello": 1}`)) },
		"a connection that is cut": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		other := httptest.NewServer(answer)
		defer other.Close()
		_, err := newClient(t, other.URL).Lock(context.Background(), newName(), Wait(0))
		t.Log(name, as[*UnavailableError](t, err))
		must(t, mustLock(t, newClient(t, other.URL, urls(t)[0]), newName(), Wait(0)).Release())
	}
}
