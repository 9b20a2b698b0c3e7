package envoy

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// wired is a workload that anybody may call, with an application that answers what each test
// says, byte by byte.
func wired(t *testing.T, answer func(request string, body *bufio.Reader, conn net.Conn)) (*inboundEnvoy, uint16) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				reader := bufio.NewReader(conn)
				for {
					var head strings.Builder
					for {
						line, err := reader.ReadString('\n')
						if err != nil {
							return
						}
						head.WriteString(line)
						if line == "\r\n" {
							break
						}
					}
					answer(head.String(), reader, conn)
				}
			}()
		}
	}()
	port := portOf(listener)
	e := runInbound(t, func(*app) inboundCase {
		return inboundCase{inbound: mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{{Port: port, Protocol: mesh.HTTP, Access: mesh.Access{Anyone: true}}}}}
	})
	return e, port
}

// TestRealEnds checks that both ends see what they would see without Envoy.
func TestRealEnds(t *testing.T) {
	var attempts atomic.Int32
	e, port := wired(t, func(head string, body *bufio.Reader, conn net.Conn) {
		fields := strings.Fields(head)
		switch path := fields[1]; {
		case strings.HasPrefix(path, "/trailers"):
			rest := readUntil(body, "\r\n\r\n")
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\nX-End: yes\r\n\r\n", len(rest), rest)
		case path == "/expect":
			io.WriteString(conn, "HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n")
		case path == "/hints":
			io.WriteString(conn, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		case path == "/closes":
			if attempts.Add(1) == 1 {
				conn.Close()
				return
			}
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		case path == "/lines":
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\n%sContent-Length: 0\r\n\r\n", strings.Repeat("X-A: 1\r\n", 150))
		default:
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nX-Outrigger-Upstream: forged\r\nContent-Length: %d\r\n\r\n%s", len(head), head)
		}
	})
	exchange := func(request string, until string) string {
		t.Helper()
		conn, err := e.call(port)
		if err != nil {
			t.Fatal(err)
		}
		secure := tls.Client(conn, e.as(buyer, "http/1.1"))
		defer secure.Close()
		secure.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := io.WriteString(secure, strings.ReplaceAll(request, "\n", "\r\n")); err != nil {
			t.Fatal(err)
		}
		return readUntil(bufio.NewReader(secure), until)
	}
	for name, tt := range map[string]struct{ request, until, want, not string }{
		"upgrade to TLS":      {"GET /a HTTP/1.1\nHost: a\nConnection: Upgrade\nUpgrade: TLS/1.2\n\n", "\r\n\r\n", "200 OK", "Upgrade"},
		"upgrade to h2c":      {"GET /a HTTP/1.1\nHost: a\nConnection: Upgrade, HTTP2-Settings\nUpgrade: h2c\nHTTP2-Settings: AAMAAABk\n\n", "\r\n\r\n", "200 OK", "Upgrade"},
		"upgrade to foo":      {"GET /a HTTP/1.1\nHost: a\nConnection: keep-alive, Upgrade\nUpgrade: foo, websocketx\n\n", "\r\n\r\n", "200 OK", "Upgrade"},
		"a registered method": {"PROPFIND /a HTTP/1.1\nHost: a\n\n", "PROPFIND /a", "200 OK", ""},
		"signed path":         {"GET /a//b/../c|{}^?x=| HTTP/1.1\nHost: a\n\n", "/a//b/../c|{}^?x=| ", "200 OK", ""},
		"trailers":            {"POST /trailers HTTP/1.1\nHost: a\nTE: trailers\nTransfer-Encoding: chunked\n\n1\na\n0\nX-Sum: 7\n\n", "x-end: yes\r\n\r\n", "x-sum: 7", ""},
		"expectation":         {"POST /expect HTTP/1.1\nHost: a\nExpect: 100-continue\nContent-Length: 9\n\n", "\r\n\r\n", "417", "100"},
		"early hints":         {"GET /hints HTTP/1.1\nHost: a\n\n", "\r\n\r\n", "HTTP/1.1 ", ""},
		"150 lines":           {"GET /lines HTTP/1.1\nHost: a\n" + strings.Repeat("X-B: 1\n", 150) + "\n", "\r\n\r\n", "200 OK", ""},
		"a request again":     {"GET /closes HTTP/1.1\nHost: a\n\n", "\r\n\r\n", "200 OK", ""},
		"Outrigger's headers": {"GET /a HTTP/1.1\nHost: a\nX-Outrigger-Session: forged\nX_Outrigger-Served: 1\n\n", "\r\n\r\n", "200 OK", "forged"},
	} {
		got := exchange(tt.request, tt.until)
		if !strings.Contains(strings.ToLower(got), strings.ToLower(tt.want)) || !strings.HasSuffix(got, tt.until) || tt.not != "" && strings.Contains(got, tt.not) {
			t.Errorf("%s: the client got\n%s", name, got)
		}
	}
}

// readUntil returns what can be read up to a text.
func readUntil(r *bufio.Reader, end string) string {
	var out strings.Builder
	for !strings.HasSuffix(out.String(), end) {
		c, err := r.ReadByte()
		if err != nil {
			break
		}
		out.WriteByte(c)
	}
	return out.String()
}

// TestRealGRPCReplies checks the status of Envoy's own answers to gRPC calls, and that a request
// is sent to another endpoint if one cannot be reached.
func TestRealGRPCReplies(t *testing.T) {
	slow, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slow.Close() })
	dead, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "alive") })}
	alive, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(alive)
	t.Cleanup(func() { server.Close() })

	plain := func(l net.Listener) mesh.Endpoint {
		return mesh.Endpoint{Addresses: addresses(strings.Split(l.Addr().String(), ":")[0]), Port: portOf(l)}
	}
	calls := backend(port("calls", 80), mesh.GRPC, plain(slow))
	pair := backend(port("pair", 80), mesh.HTTP, plain(dead), plain(alive))
	d := destination(calls.Service, mesh.GRPC, "10.96.0.1", calls)
	d.Routes = []mesh.Route{
		{Match: mesh.HTTPMatch{Path: mesh.StringMatch{Exact: "/slow"}}, Backends: shares(calls), Timeout: 50 * time.Millisecond},
		{Match: mesh.HTTPMatch{Path: mesh.StringMatch{Exact: "/unresolved"}}, Backends: []mesh.WeightedBackend{{Weight: 1}}},
		{Match: mesh.HTTPMatch{Path: mesh.StringMatch{Exact: "/none"}}},
		{Match: mesh.HTTPMatch{Query: []mesh.KeyMatch{{Name: "s", StringMatch: mesh.StringMatch{Exact: "a b"}}}}, Redirect: &mesh.Redirect{Status: 302}},
	}
	f := fixture{scope: "*", destinations: []*mesh.Destination{d, destination(pair.Service, mesh.HTTP, "10.96.0.2", pair)}, backends: []*mesh.Backend{calls, pair}}
	dir := t.TempDir()
	newAuthority(t).writeTo(dir, buyer)
	e := startEnvoy(t, f.view(), dir, outboundListener)

	ask := func(destination, target, contentType string) *http.Response {
		t.Helper()
		client := &http.Client{Transport: &http.Transport{DialContext: e.dialer(destination), DisableKeepAlives: true}, Timeout: 10 * time.Second,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		request, _ := http.NewRequest("POST", "http://a"+target, nil)
		request.Header.Set("Content-Type", contentType)
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response
	}
	for path, want := range map[string]struct {
		http int
		grpc string
	}{"/slow": {504, "4"}, "/unresolved": {500, "14"}, "/none": {503, "14"}} {
		if got := ask("10.96.0.1:80", path, "application/grpc"); got.StatusCode != 200 || got.Header.Get("Grpc-Status") != want.grpc {
			t.Errorf("a call of %s ends with %s %v, want the status %s", path, got.Status, got.Header, want.grpc)
		}
		if got := ask("10.96.0.1:80", path, "text/plain"); got.StatusCode != want.http || got.Header.Get("Grpc-Status") != "" {
			t.Errorf("a request of %s is answered with %s %v, want %d", path, got.Status, got.Header, want.http)
		}
	}
	for _, target := range []string{"/?s=a%20b", "/?r=1&%73=a+b&s=c", "/?s=%zz&s=a%20b"} {
		if got := ask("10.96.0.1:80", target, "text/plain"); got.StatusCode != 302 {
			t.Errorf("%s is answered with %s", target, got.Status)
		}
	}
	for range 6 {
		if got := ask("10.96.0.2:80", "/", "text/plain"); got.StatusCode != 200 {
			t.Errorf("with one of two endpoints there the answer is %s", got.Status)
		}
	}
}
