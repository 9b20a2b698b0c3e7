package record

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// newConnectionCounter returns a counter of a proxy that writes lines about open connections.
func newConnectionCounter() *counter {
	c := newTestCounter()
	c.openState = "Going"
	return c
}

// connectionLine is a line about a connection of the web server's.
func connectionLine(id int, target, state string, received, sent int, why string) []byte {
	return fmt.Appendf(nil, "connection=1795560884000400/%d;%s;%s record=-;%d;%d;-;destination;tcp;-;-;TLSv1.3;%s;;%s\n", id, target, state, received, sent, webPeer, why)
}

// expect compares the samples of the page that are about connections.
func (c *counter) expect(t *testing.T, when string, want ...string) {
	t.Helper()
	var page strings.Builder
	c.write(&page)
	var got []string
	for line := range strings.Lines(page.String()) {
		if !strings.HasPrefix(line, "#") {
			got = append(got, strings.ReplaceAll(strings.TrimSpace(line), fromWeb, "{"))
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s the page has\n%s\nwant\n%s", when, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func connectionSamples(connections, received, sent int) []string {
	return []string{
		fmt.Sprintf(`%s{"tcp",tls="mutual"} %d`, telemetry.Connections, connections),
		fmt.Sprintf(`%s{"tcp"} %d`, telemetry.ReceivedBytes, received),
		fmt.Sprintf(`%s{"tcp"} %d`, telemetry.SentBytes, sent),
	}
}

// TestOpenConnections counts two connections while they are open, and does not count anything
// again when they end.
func TestOpenConnections(t *testing.T) {
	c := newConnectionCounter()
	c.count(connectionLine(1, "-", "Going", 0, 0, "inbound 0 - - -"))
	c.expect(t, "before the connection is forwarded")
	c.count(connectionLine(1, "10.0.0.1:80", "Going", 10, 20, "inbound 0 - - -"))
	c.expect(t, "after the first line", connectionSamples(1, 10, 20)...)
	c.count(connectionLine(1, "10.0.0.1:80", "Going", 10, 20, "inbound 0 - - -"))
	c.count(connectionLine(2, "10.0.0.1:80", "Going", 5, 0, "inbound 0 - - -"))
	c.expect(t, "with two connections", connectionSamples(2, 15, 20)...)
	c.count(connectionLine(1, "10.0.0.1:80", "Going", 110, 220, "inbound 0 - - -"))
	c.expect(t, "after another line", connectionSamples(2, 115, 220)...)
	// A TLS error after the handshake is no refusal.
	c.count(connectionLine(1, "10.0.0.1:80", "Gone", 120, 220, "inbound 0 - - broken TLS"))
	c.count(connectionLine(2, "10.0.0.1:80", "Gone", 5, 1000, "inbound 0 - - -"))
	c.expect(t, "at the end", connectionSamples(2, 125, 1220)...)
	if n := len(c.open.of); n != 0 {
		t.Errorf("%d connections are remembered, want none", n)
	}
	c.count(connectionLine(3, "10.0.0.1:80", "Gone", 1, 1, "inbound 0 - - -"))
	c.expect(t, "after a short connection", connectionSamples(3, 126, 1221)...)
}

// TestRefusedConnectionHasNoSecondCount lets a connection be refused after some time.
func TestRefusedConnectionHasNoSecondCount(t *testing.T) {
	c := newConnectionCounter()
	c.count(connectionLine(1, "-", "Going", 0, 0, "inbound 0 - - -"))
	c.count(connectionLine(1, "-", "Gone", 0, 0, "access"))
	c.expect(t, "after the refusal", telemetry.Denied+`{"tcp",reason="access"} 1`)
	c.count(connectionLine(2, "10.0.0.1:80", "Going", 1, 1, "access"))
	c.expect(t, "before another refusal ends", telemetry.Denied+`{"tcp",reason="access"} 1`)
	c.count(connectionLine(2, "10.0.0.1:80", "Gone", 1, 1, "access"))
	c.expect(t, "after another refusal", telemetry.Denied+`{"tcp",reason="access"} 2`)
}

// TestAuditOfOpenConnection counts what an audit says once, although it may come later than the
// first line.
func TestAuditOfOpenConnection(t *testing.T) {
	c := newConnectionCounter()
	for id, first := range []string{"-", "denied"} {
		for _, audit := range []string{first, "denied", "denied"} {
			c.count(connectionLine(id, "10.0.0.1:80", "Going", 0, 0, "-;"+audit))
		}
		c.count(connectionLine(id, "10.0.0.1:80", "Gone", 0, 0, "-;denied"))
	}
	c.expect(t, "at the end", append(connectionSamples(2, 0, 0), telemetry.AuditDenied+`{"tcp",reason="access"} 2`)...)
}

// TestMalformedConnections are not counted.
func TestMalformedConnections(t *testing.T) {
	c := newConnectionCounter()
	for _, prefix := range []string{"connection=1;to;Going", "connection=1/2", "connection=1/2;to", "connection=1/2x;to;Going", "connection=/;"} {
		c.count([]byte(prefix + " record=-;1;1;-;destination;tcp;-;-;-;-;-;-\n"))
	}
	c.expect(t, "after malformed lines")
	if n := c.metrics.RecordsBad.Load(); n != 5 {
		t.Errorf("%d lines were malformed, want 5", n)
	}
}

// TestOpenConnectionsAreBounded opens more connections than are remembered, which are counted
// exactly at their end, and forgets those of a process that has crashed.
func TestOpenConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConnectionCounter()
		c.open = newOpenConnections(3)
		for range 2 {
			for id := range 5 {
				c.count(connectionLine(id, "10.0.0.1:80", "Going", 10, 10, "-"))
			}
		}
		c.expect(t, "while there are too many", connectionSamples(3, 30, 30)...)
		for id := range 5 {
			c.count(connectionLine(id, "10.0.0.1:80", "Gone", 12, 10, "-"))
		}
		c.expect(t, "at the end", connectionSamples(5, 60, 50)...)

		for id := range 3 {
			c.count(connectionLine(10+id, "10.0.0.1:80", "Going", 0, 0, "-"))
		}
		time.Sleep(forgottenAfter / 2)
		c.count(connectionLine(10, "10.0.0.1:80", "Going", 0, 0, "-"))
		c.count(connectionLine(20, "10.0.0.1:80", "Going", 100, 0, "-"))
		c.expect(t, "while all three are remembered", connectionSamples(8, 60, 50)...)
		time.Sleep(forgottenAfter/2 + time.Minute)
		c.count(connectionLine(20, "10.0.0.1:80", "Going", 100, 0, "-"))
		c.expect(t, "after the others are forgotten", connectionSamples(9, 160, 50)...)
		c.count(connectionLine(10, "10.0.0.1:80", "Going", 7, 0, "-"))
		c.expect(t, "after another line of one that is still there", connectionSamples(9, 167, 50)...)
	})
}
