package pipy

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// permissiveInbound also accepts plaintext on ports with access for everyone.
func permissiveInbound() *mesh.Inbound {
	return &mesh.Inbound{
		TLS: mesh.Permissive,
		Ports: []mesh.InboundPort{
			{Port: httpPort, Protocol: mesh.HTTP, Access: anyone},
			{Port: limitedPort, Protocol: mesh.HTTP, Access: rules(rule("ops", anyRequest, ops))},
			{Port: helloPort, Protocol: mesh.TCPServerFirst, Access: anyone},
			{Port: tcpPort, Protocol: mesh.TCP, Access: anyone},
		},
		Others: rules(rule("ops", anyRequest, ops)),
	}
}

func TestInboundPermissive(t *testing.T) {
	w := startWorkload(t, inboundView(permissiveInbound()))
	for name, tt := range map[string]struct {
		port int
		tls  *tls.Config
		want int
	}{
		"plaintext":               {httpPort, nil, 200},
		"mesh TLS":                {httpPort, w.as(t, buyer), 200},
		"plaintext where rules":   {limitedPort, nil, refused},
		"mesh TLS where rules":    {limitedPort, w.as(t, ops), 200},
		"another identity":        {limitedPort, w.as(t, buyer), 403},
		"mesh TLS without a cert": {httpPort, &tls.Config{InsecureSkipVerify: true, ServerName: store.DNSName()}, refused},
	} {
		t.Run(name, func(t *testing.T) {
			response, got, err := w.ask(tt.port, tt.tls, "/")
			status := refused
			if err == nil {
				status = response.StatusCode
			}
			if status != tt.want {
				t.Fatalf("it gives %d (%v), want %d", status, err, tt.want)
			}
			if claim := got.Header.Get("X-Forwarded-Client-Cert"); status == 200 && (claim != "") != (tt.tls != nil) {
				t.Errorf("the application receives %q", claim)
			}
		})
	}
	t.Run("the server speaks first", func(t *testing.T) {
		conn, err := w.call(t.Context(), helloPort)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if got, err := bufio.NewReader(conn).ReadString('\n'); err != nil || got != "hello\n" {
			t.Errorf("it says %q, %v", got, err)
		}
	})
	t.Run("the application's own TLS", func(t *testing.T) {
		own := newAuthority(t)
		listener := tls.NewListener(w.listen(t, 9443), &tls.Config{Certificates: []tls.Certificate{own.issue(t, "own.example.com")}})
		go http.Serve(listener, http.HandlerFunc(answerSeen))
		in := permissiveInbound()
		in.Ports = append(in.Ports, mesh.InboundPort{Port: 9443, Protocol: mesh.TCP, Access: anyone})
		w.apply(t, inboundView(in))
		response, _, err := w.ask(9443, &tls.Config{RootCAs: own.Pool(), ServerName: "own.example.com"}, "/")
		if err != nil || response.StatusCode != 200 {
			t.Error(response, err)
		}
	})
}

// TestInboundPlaintextClass runs a pod without mesh TLS.
func TestInboundPlaintextClass(t *testing.T) {
	in := permissiveInbound()
	w := startWorkload(t, inboundView(in, func(p *mesh.Proxy, _ *mesh.Settings) { p.Plaintext = true }))
	if response, _, err := w.ask(httpPort, nil, "/"); err != nil || response.StatusCode != 200 {
		t.Error(response, err)
	}
	if _, _, err := w.ask(limitedPort, nil, "/"); err == nil {
		t.Error("an anonymous caller is admitted to a port with rules")
	}
	started := time.Now()
	conn, err := w.call(t.Context(), helloPort)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, err := bufio.NewReader(conn).ReadString('\n'); err != nil || got != "hello\n" {
		t.Errorf("it says %q, %v", got, err)
	}
	t.Logf("the server was heard after %s", time.Since(started))
}

// TestInboundIPv6 calls the pod by its IPv6 address.
func TestInboundIPv6(t *testing.T) {
	w := startWorkload(t, inboundView(strictInbound()))
	raw, err := w.lab.Node().Dial(t.Context(), "tcp", fmt.Sprintf("[2001:db8::10]:%d", httpPort))
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(raw, w.as(t, buyer))
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprint(conn, "GET /books/1 HTTP/1.1\r\nHost: books\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(response.Body)
	if response.StatusCode != 200 || !strings.Contains(string(body), `"From":"::6"`) {
		t.Errorf("it gives %s, %s", response.Status, body)
	}
}

// TestInboundPolicyIsData changes the policy while connections are open, and then the root
// of the mesh.
func TestInboundPolicyIsData(t *testing.T) {
	w := startWorkload(t, inboundView(strictInbound()))
	transport := &http.Transport{
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return w.call(ctx, httpPort) },
		TLSClientConfig: w.as(t, buyer), MaxConnsPerHost: 1,
	}
	client := &http.Client{Transport: transport, Timeout: 20 * time.Second}
	defer client.CloseIdleConnections()
	get := func() int {
		t.Helper()
		response, err := client.Get("https://books/books/1")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		io.Copy(io.Discard, response.Body)
		return response.StatusCode
	}
	raw, err := w.call(t.Context(), tcpPort)
	if err != nil {
		t.Fatal(err)
	}
	stream := tls.Client(raw, w.as(t, buyer))
	defer stream.Close()
	lines := bufio.NewReader(stream)
	echo := func(line string) {
		t.Helper()
		fmt.Fprintln(stream, line)
		if got, err := lines.ReadString('\n'); err != nil || got != line+"\n" {
			t.Fatalf("the stream says %q, %v", got, err)
		}
	}
	echo("before")
	if got := get(); got != 200 {
		t.Fatalf("the first answer is %d", got)
	}
	closed := strictInbound()
	closed.Ports[0].Access = rules(rule("ops", anyRequest, ops))
	w.apply(t, inboundView(closed))
	if got := get(); got != 403 {
		t.Errorf("without the rule the answer is %d", got)
	}
	echo("after a change of policy")
	w.apply(t, inboundView(strictInbound()))
	if got := get(); got != 200 {
		t.Errorf("with the rule again the answer is %d", got)
	}

	former := w.as(t, buyer)
	w.root = newAuthority(t)
	w.writeIdentity(t, store)
	w.offer(t)
	echo("after a change of root")
	if got := get(); got != 200 {
		t.Errorf("on the open connection the answer is %d", got)
	}
	if response, _, err := w.ask(httpPort, w.as(t, buyer), "/books/1"); err != nil || response.StatusCode != 200 {
		t.Errorf("with the new root: %v, %v", response, err)
	}
	former.InsecureSkipVerify = true
	if response, _, err := w.ask(httpPort, former, "/books/1"); err == nil {
		t.Errorf("a certificate of the former root gets %s", response.Status)
	}
}

// TestInboundAnswersThatEndEarly lets the application close connections during an answer.
func TestInboundAnswersThatEndEarly(t *testing.T) {
	w := startWorkload(t, inboundView(publicInbound()))
	sockets := w.listen(t, 9200)
	go func() {
		for {
			conn, err := sockets.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				request, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				switch request.URL.Path {
				case "/public/length":
					fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun")
				case "/public/chunks":
					fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n")
				case "/public/close":
					fmt.Fprint(conn, "HTTP/1.0 200 OK\r\n\r\nwhole")
				case "/public/early":
					fmt.Fprint(conn, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole")
				case "/public/unchanged":
					fmt.Fprint(conn, "HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\n\r\n")
				}
			}()
		}
	}()
	for path, want := range map[string]struct {
		status int
		body   string
		cut    bool
	}{
		"/public/length": {200, "begun", true}, "/public/chunks": {200, "begun", true}, "/public/close": {200, "whole", false},
		"/public/early": {200, "whole", false}, "/public/nothing": {503, "", false}, "/public/unchanged": {304, "", false},
	} {
		t.Run(path, func(t *testing.T) {
			raw, err := w.call(t.Context(), 9200)
			if err != nil {
				t.Fatal(err)
			}
			conn := tls.Client(raw, w.as(t, buyer))
			defer conn.Close()
			fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path)
			response, err := readFinal(bufio.NewReader(conn))
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(response.Body)
			if response.StatusCode != want.status || want.body != "" && string(body) != want.body || (err != nil) != want.cut {
				t.Errorf("it gives %s, %q, %v", response.Status, body, err)
			}
		})
	}
}

// readFinal reads an answer, after any interim ones.
func readFinal(reader *bufio.Reader) (*http.Response, error) {
	for {
		response, err := http.ReadResponse(reader, nil)
		if err != nil || response.StatusCode >= 200 {
			return response, err
		}
	}
}
