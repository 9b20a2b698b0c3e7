package envoy

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestRealRecordsOfOpenConnections has a real Envoy write records of a connection while it is
// open, of one whose client never completes the TLS handshake, and a line of the access log
// only at the end.
func TestRealRecordsOfOpenConnections(t *testing.T) {
	t.Parallel()
	e := runInbound(t, func(p *app) inboundCase {
		c := strictInbound(p)
		c.settings = func(s *mesh.Settings) { s.AccessLog = mesh.FullAccessLog() }
		return c
	})
	deaf, err := e.call(e.tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	hello := make(chan struct{})
	go func() { _ = tls.Client(deafConn{deaf, hello, t.Context()}, e.as(buyer)).Handshake() }()
	<-hello
	raw, err := e.call(e.tcp)
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(raw, e.as(buyer))
	defer conn.Close()
	reader := bufio.NewReader(conn)
	expect := func(want string) {
		t.Helper()
		if got, err := reader.ReadString('\n'); err != nil || got != want {
			t.Fatalf("the application says %q, %v, want %q", got, err, want)
		}
	}
	expect("hello\n")
	want := []string{"TcpPeriodic 0 6"}
	e.untilRecords(t, want)
	fmt.Fprint(conn, "1234\n")
	expect("1234\n")
	want = append(want, "TcpPeriodic 5 11")
	e.untilRecords(t, want)
	if n := e.linesOf(t, buyer); n != 0 {
		t.Errorf("the access log has %d lines while the connection is open", n)
	}
	fmt.Fprint(conn, "12\n")
	expect("12\n")
	conn.Close()
	e.untilRecords(t, append(want, "TcpConnectionEnd 8 14"))
	for deadline := time.Now().Add(5 * time.Second); e.linesOf(t, buyer) == 0 && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
	}
	if n := e.linesOf(t, buyer); n != 1 {
		t.Errorf("the access log has %d lines of the connection, want one", n)
	}
}

// linesOf returns how many lines of the access log are about a client.
func (e *inboundEnvoy) linesOf(t *testing.T, client mesh.Identity) int {
	t.Helper()
	text, err := os.ReadFile(e.output)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), `"downstream_peer":"`+client.String()+`"`)
}

// deafConn is a connection that nothing can be read from. It closes the channel when its user
// reads for the first time.
type deafConn struct {
	net.Conn
	reads chan<- struct{}
	until context.Context
}

func (c deafConn) Read([]byte) (int, error) {
	close(c.reads)
	<-c.until.Done()
	return 0, io.EOF
}

// untilRecords waits until there are these records of the one connection that was forwarded
// and one of the handshake that is not complete, and checks that those of the former name it
// and its client.
func (e *inboundEnvoy) untilRecords(t *testing.T, want []string) {
	t.Helper()
	var got []string
	waiting := 0
	for deadline := time.Now().Add(12 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		text, err := os.ReadFile(e.records)
		if err != nil {
			t.Fatal(err)
		}
		got, waiting = nil, 0
		ids := map[string]bool{}
		for line := range strings.Lines(string(text)) {
			prefix, record, _ := strings.Cut(line, " record=")
			parts, fields := strings.Split(prefix, ";"), strings.Split(record, ";")
			if len(parts) != 3 || len(fields) < kindFields {
				t.Fatalf("a record is %s", line)
			}
			if parts[1] == "-" {
				waiting++
				continue
			}
			if fields[9] != buyer.String() {
				t.Fatalf("the client is %s, want %s, in %s", fields[9], buyer, line)
			}
			ids[parts[0]] = true
			got = append(got, fmt.Sprintf("%s %s %s", parts[2], fields[1], fields[2]))
		}
		if len(ids) > 1 {
			t.Fatalf("one connection has several IDs: %v", ids)
		}
		// Envoy writes the two connections' records at about the same time, in any order.
		if waiting > 0 && slices.Equal(slices.Compact(got), want) {
			return
		}
	}
	t.Fatalf("the records are %v and %d of handshakes that are not complete, want %v and at least one", got, waiting, want)
}

// kindFields is how many fields a record has.
const kindFields = 13
