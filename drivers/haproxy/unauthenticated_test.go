package haproxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestUnauthenticatedClients opens more silent connections than the proxy allows, at each port that
// clients can reach: the application's own calls must still work.
func TestUnauthenticatedClients(t *testing.T) {
	a := newApp(t)
	f := strict(a)
	f.egress.AllowAll = true
	r, _ := runInbound(t, f)
	file := filepath.Join(r.dir, configFile)
	config, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	smaller := strings.NewReplacer("fd-hard-limit 100000", "maxconn 40", "maxconn 10000", "maxconn 10", "maxconn 128", "maxconn 10", "maxconn 32", "maxconn 4").Replace(string(config))
	if err := os.WriteFile(file, []byte(smaller), 0o600); err != nil {
		t.Fatal(err)
	}
	r.reload()
	for range 60 {
		conn, err := dial(r.inbound, local(a.http))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		metrics, err := net.Dial("tcp", local(r.metrics))
		if err != nil {
			t.Fatal(err)
		}
		defer metrics.Close()
	}
	if response, _, err := ask(client(r.outbound, local(a.http), nil, false), "/"); err != nil || response.StatusCode != 200 {
		t.Errorf("the application's call gives %v, %v", response, err)
	}
}

// handshakeTime is longer than the timeout of handshakes.
const handshakeTime = 11 * time.Second

// TestHalfHandshakes lets clients stop during a handshake, and others be silent for longer
// after it.
func TestHalfHandshakes(t *testing.T) {
	a := newApp(t)
	a.answer = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/books/slow" {
			return false
		}
		body, err := io.ReadAll(r.Body)
		if err == nil {
			time.Sleep(handshakeTime)
			fmt.Fprintf(w, `{"Path":%q}`, body)
		}
		return true
	}
	strictly, ca := runInbound(t, strict(a))
	ingress, ingressCA := runInbound(t, withIngress(a))
	// The subtests mostly wait.
	var group sync.WaitGroup
	defer group.Wait()
	beside := func(name string, test func(*testing.T)) { group.Go(func() { t.Run(name, test) }) }
	for name, tt := range map[string]struct {
		listener uint16
		name     string
	}{
		"mesh":             {strictly.inbound, "bookstore.bookstore.sa.cluster.local"},
		"mesh, by entry":   {ingress.inbound, "bookstore.bookstore.sa.cluster.local"},
		"from the outside": {ingress.inbound, "books.example.com"},
	} {
		beside(name, func(t *testing.T) {
			conn, err := dial(tt.listener, local(a.other))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			begin := time.Now()
			half := tls.Client(onlyFirst{conn}, &tls.Config{ServerName: tt.name, InsecureSkipVerify: true})
			go half.Handshake()
			_, err = io.Copy(io.Discard, conn)
			if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
				t.Errorf("half a handshake is still open after %s", time.Since(begin))
			}
		})
	}
	for name, text := range map[string]string{"nothing": "", "half a head": "GET /books HTTP/1.1\r\nHost: a\r\n"} {
		beside(name+" in plaintext", func(t *testing.T) {
			conn, err := dial(ingress.inbound, local(a.http))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			begin := time.Now()
			if _, err := io.WriteString(conn, text); err != nil {
				t.Fatal(err)
			}
			_, err = io.Copy(io.Discard, conn)
			if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
				t.Errorf("a connection with %s is still open after %s", name, time.Since(begin))
			}
		})
	}
	for name, of := range map[string]struct {
		listener uint16
		config   *tls.Config
	}{"mesh": {strictly.inbound, ca.as(buyer, store)}, "mesh, by entry": {ingress.inbound, ingressCA.as(buyer, store)}} {
		beside("TCP that is silent, "+name, func(t *testing.T) {
			raw, err := dial(of.listener, local(a.tcp))
			if err != nil {
				t.Fatal(err)
			}
			conn := tls.Client(raw, of.config.Clone())
			defer conn.Close()
			lines := bufio.NewReader(conn)
			if line, err := lines.ReadString('\n'); err != nil || line != "hello\n" {
				t.Fatalf("the server says %q, %v", line, err)
			}
			time.Sleep(handshakeTime)
			fmt.Fprintln(conn, "still here")
			if line, err := lines.ReadString('\n'); err != nil || line != "still here\n" {
				t.Errorf("afterwards the server says %q, %v", line, err)
			}
		})
		for _, h2 := range []bool{false, true} {
			beside(fmt.Sprintf("a request that is slow, %s, HTTP/2 %t", name, h2), func(t *testing.T) {
				body, write := io.Pipe()
				go func() {
					io.WriteString(write, "a")
					time.Sleep(handshakeTime)
					io.WriteString(write, "b")
					write.Close()
				}()
				c := client(of.listener, local(a.http), of.config.Clone(), h2)
				c.Timeout = 0
				c.Transport.(*http.Transport).DialContext = patient(of.listener, local(a.http))
				defer c.CloseIdleConnections()
				response, err := c.Post("https://books.example.com/books/slow", "text/plain", body)
				if err != nil {
					t.Fatal(err)
				}
				defer response.Body.Close()
				if content, err := io.ReadAll(response.Body); err != nil || string(content) != `{"Path":"ab"}` {
					t.Errorf("the answer is %s %q, %v", response.Status, content, err)
				}
			})
		}
	}
}

// patient is like dial without a deadline.
func patient(listener uint16, to string) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		conn, err := dial(listener, to)
		if err != nil {
			return nil, err
		}
		return conn, conn.SetDeadline(time.Time{})
	}
}

// onlyFirst lets a TLS client only write. Its reads block: the test itself reads.
type onlyFirst struct{ net.Conn }

func (onlyFirst) Read([]byte) (int, error) { select {} }

// TestLongNames checks callers whose names are too long for the PROXY protocol.
func TestLongNames(t *testing.T) {
	long := mesh.Identity{TrustDomain: buyer.TrustDomain, Namespace: strings.Repeat("n", 63), ServiceAccount: strings.Repeat("a", 200)}
	a := newApp(t)
	f := withIngress(a)
	f.inbound.Ports[0].Access = access(permission("long/names", anything, long))
	r, ca := runInbound(t, f)
	for _, h2 := range []bool{false, true} {
		response, saw, err := ask(client(r.inbound, local(a.http), ca.as(long, store), h2), "/books/1")
		if err != nil || response.StatusCode != 200 {
			t.Errorf("HTTP/2 %t: the long name gets %v, %v", h2, response, err)
			continue
		}
		if got, want := saw.Header.Get("x-forwarded-client-cert"), "URI="+long.String(); got != want {
			t.Errorf("HTTP/2 %t: the application receives %q, want %q", h2, got, want)
		}
		long := long
		long.ServiceAccount += "b"
		if response, _, err := ask(client(r.inbound, local(a.http), ca.as(long, store), h2), "/books/1"); err != nil || response.StatusCode != 403 {
			t.Errorf("HTTP/2 %t: another long name gets %v, %v", h2, response, err)
		}
	}
}
