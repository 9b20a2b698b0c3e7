package pipy

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// listenTLS starts a server of the mesh that handles each connection with the function.
func (s *pipyPod) listenTLS(t *testing.T, serverName string, serve func(net.Conn)) netip.AddrPort {
	t.Helper()
	listener, err := s.lab.Node().Listen(context.Background(), "tcp", "198.18.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	config := &tls.Config{
		Certificates: []tls.Certificate{s.root.issue(t, serverName)}, ClientCAs: s.root.Pool(),
		ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(tls.Server(conn, config))
			}()
		}
	}()
	return listener.Addr().(*net.TCPAddr).AddrPort()
}

// dial connects like the pod's application.
func (s *pipyPod) dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := s.Dial(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn
}

func echo(conn net.Conn) { io.Copy(conn, conn) }

func greet(conn net.Conn) {
	io.WriteString(conn, "welcome\n")
	io.Copy(io.Discard, conn)
}

func TestOutboundTCP(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	w.service("echo", 7, mesh.TCP, "10.96.0.1", at(s.listenTLS(t, storeName, echo), storeName))
	w.service("db", 3306, mesh.TCPServerFirst, "10.96.0.2", at(s.listenTLS(t, storeName, greet), storeName))
	w.service("thief", 7, mesh.TCP, "10.96.0.3", at(s.listenTLS(t, "thief.bookstore.sa.cluster.local", greet), storeName))
	w.service("nobody", 7, mesh.TCP, "10.96.0.4", at(netip.MustParseAddrPort("198.18.0.1:9"), storeName))
	w.destinations[0].Addresses = append(w.destinations[0].Addresses, netip.MustParseAddr("fd00:96::1"))
	s.apply(t, w.view())

	for _, address := range []string{"10.96.0.1:7", "[fd00:96::1]:7"} {
		conn := s.dial(t, address)
		big := strings.Repeat("0123456789abcdef", 1<<16)
		go io.WriteString(conn, big)
		got := make([]byte, len(big))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != big {
			t.Errorf("%s does not echo a megabyte: %v", address, err)
		}
	}
	line, err := bufio.NewReader(s.dial(t, "10.96.0.2:3306")).ReadString('\n')
	if line != "welcome\n" {
		t.Errorf("a client that waits reads %q, %v", line, err)
	}
	for _, address := range []string{"10.96.0.3:7", "10.96.0.4:7", "10.96.0.5:7"} {
		conn := s.dial(t, address)
		fmt.Fprintln(conn, "hello")
		if got, _ := io.ReadAll(conn); len(got) > 0 {
			t.Errorf("%s says %q", address, got)
		}
	}
}

func TestOutboundHTTP2(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	store := s.peer(t, storeName, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-End")
		w.Header().Set("X-Proto", r.Proto)
		w.WriteHeader(200)
		http.NewResponseController(w).Flush()
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			fmt.Fprintln(w, "got", lines.Text())
			http.NewResponseController(w).Flush()
		}
		w.Header().Set("X-End", "yes")
	}))
	w.service("store", 80, mesh.GRPC, "10.96.0.1", at(store, storeName))
	s.apply(t, w.view())

	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{DialContext: s.Dial, Protocols: protocols}, Timeout: 20 * time.Second}
	defer client.CloseIdleConnections()
	for range 2 {
		reader, writer := io.Pipe()
		request, _ := http.NewRequestWithContext(t.Context(), "POST", "http://10.96.0.1/chat", reader)
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if response.Header.Get("X-Proto") != "HTTP/2.0" {
			t.Errorf("the server received %s", response.Header.Get("X-Proto"))
		}
		answers := bufio.NewReader(response.Body)
		for _, word := range []string{"one", "two"} {
			fmt.Fprintln(writer, word)
			if line, err := answers.ReadString('\n'); line != "got "+word+"\n" {
				t.Fatalf("after %s comes %q, %v", word, line, err)
			}
		}
		writer.Close()
		if rest, err := io.ReadAll(answers); len(rest) > 0 || err != nil {
			t.Errorf("at the end comes %q, %v", rest, err)
		}
		if response.Trailer.Get("X-End") != "yes" {
			t.Errorf("the trailers are %v", response.Trailer)
		}
	}
}

func TestOutboundWebSocket(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	store := s.peer(t, storeName, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" || !strings.EqualFold(r.Header.Get("Connection"), "upgrade") {
			http.Error(w, "no upgrade", 400)
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		io.Copy(conn, buffered)
	}))
	w.service("store", 80, mesh.HTTP, "10.96.0.1", at(store, storeName))
	s.apply(t, w.view())
	conn := s.dial(t, "10.96.0.1:80")
	io.WriteString(conn, "GET /ws HTTP/1.1\r\nHost: store\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGVzdA==\r\n\r\n")
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil || response.StatusCode != 101 {
		t.Fatalf("the answer is %v, %v", response, err)
	}
	for _, word := range []string{"ping\n", "pong\n"} {
		io.WriteString(conn, word)
		if line, err := reader.ReadString('\n'); line != word {
			t.Fatalf("%q comes back as %q, %v", word, line, err)
		}
	}
	conn.Close()
	for range 3 {
		if status, _ := s.get(t, "http://10.96.0.1/"); status != 400 {
			t.Errorf("afterwards an ordinary request gets %d", status)
		}
	}
}

// TestAnswerBeforeTheEnd lets a server answer before the request has ended.
func TestAnswerBeforeTheEnd(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	store := s.peer(t, storeName, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(403)
	}))
	w.service("store", 80, mesh.GRPC, "10.96.0.1", at(store, storeName))
	s.apply(t, w.view())
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{DialContext: s.Dial, Protocols: protocols}, Timeout: 20 * time.Second}
	defer client.CloseIdleConnections()
	for i := range 5 {
		reader, writer := io.Pipe()
		go fmt.Fprintln(writer, "hello")
		request, _ := http.NewRequestWithContext(t.Context(), "POST", "http://10.96.0.1/chat", reader)
		response, err := client.Do(request)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if response.StatusCode != 403 {
			t.Errorf("the answer is %s", response.Status)
		}
		response.Body.Close()
		writer.Close()
	}
}

// TestHeadWithABody checks that the body of a HEAD request is not read as another request.
func TestHeadWithABody(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	var mu sync.Mutex
	var seen []string
	store := s.peer(t, storeName, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, r.Method+" "+r.URL.Path)
	}))
	w.service("store", 80, mesh.HTTP, "10.96.0.1", at(store, storeName))
	s.apply(t, w.view())
	for _, request := range []string{
		"HEAD /a HTTP/1.1\r\nHost: store\r\nContent-Length: 32\r\nConnection: close\r\n\r\n" + strings.Repeat("x", 32),
		"POST /a HTTP/1.1\r\nHost: store\r\nContent-Length: +3\r\nConnection: close\r\n\r\nabc",
		"HEAD /a HTTP/1.1\r\nHost: store\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
	} {
		conn := s.dial(t, "10.96.0.1:80")
		io.WriteString(conn, request)
		if answer, _ := io.ReadAll(conn); !strings.HasPrefix(string(answer), "HTTP/1.1 400") {
			t.Errorf("%q gets %q", request, answer)
		}
		if status, _ := s.get(t, "http://10.96.0.1/b"); status != 200 {
			t.Errorf("the next request gets %d", status)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff([]string{"GET /b", "GET /b", "GET /b"}, seen); diff != "" {
		t.Errorf("the server has seen (-want +got):\n%s", diff)
	}
}
