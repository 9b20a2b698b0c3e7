package envoy

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestChunksAfterOldAnswer checks that a body in chunks keeps them, although the application has
// answered the request before with HTTP/1.0 and kept the connection: it must not read the body as
// another request.
func TestChunksAfterOldAnswer(t *testing.T) {
	var hidden, connections atomic.Int32
	e, port := wired(t, func(head string, body *bufio.Reader, conn net.Conn) {
		path := strings.Fields(head)[1]
		switch {
		case path == "/hidden":
			hidden.Add(1)
		case path == "/first":
			connections.Add(1)
		case strings.Contains(strings.ToLower(head), "transfer-encoding: chunked"):
			path = readUntil(body, "0\r\n\r\n")
		case strings.Contains(head, "x-outrigger-"):
			path = head
		}
		fmt.Fprintf(conn, "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n%s", len(path), path)
	})
	conn, err := e.call(port)
	if err != nil {
		t.Fatal(err)
	}
	secure := tls.Client(conn, e.as(buyer, "http/1.1"))
	defer secure.Close()
	_ = secure.SetDeadline(time.Now().Add(10 * time.Second))
	answers := bufio.NewReader(secure)
	const smuggled = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
	inChunks := fmt.Sprintf("POST /second HTTP/1.1\r\nHost: a\r\nX-Outrigger-Chunked: no\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(smuggled), smuggled)
	for range 3 {
		for _, exchange := range [][2]string{
			{"GET /first HTTP/1.1\r\nHost: a\r\n\r\n", "/first"},
			{inChunks, "0\r\n\r\n"},
			{"GET /third HTTP/1.1\r\nHost: a\r\nX-Outrigger-Chunked: yes\r\n\r\n", "/third"},
			{"POST /fourth HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", "/fourth"},
		} {
			if _, err := io.WriteString(secure, exchange[0]); err != nil {
				t.Fatal(err)
			}
			if got := readUntil(answers, exchange[1]); !strings.HasSuffix(got, exchange[1]) {
				t.Fatalf("the answer to %q is %q, want that it ends with %q", exchange[0], got, exchange[1])
			}
		}
	}
	if n := hidden.Load(); n > 0 {
		t.Errorf("the application has read %d requests in bodies", n)
	}
}
