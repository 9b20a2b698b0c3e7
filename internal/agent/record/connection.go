package record

import (
	"bytes"
	"time"
)

const (
	// maxOpen bounds the memory for open connections. Further ones are counted when they end.
	maxOpen = 20_000
	// forgottenAfter is when an open connection without lines is forgotten, if there are too
	// many others. Its proxy has crashed.
	forgottenAfter = 10 * time.Minute
)

// connectionState says what a record means for its connection.
type connectionState int

const (
	// onlyLine is a record about a request, or the only one about a connection.
	onlyLine connectionState = iota
	// notForwarded is a record about a connection that may still be refused.
	notForwarded
	// stillOpen is a record about a connection that other records follow.
	stillOpen
	// lastLine is the last record about a connection.
	lastLine
)

var connectionStart = []byte("connection=")

// connectionOf returns the connection of a record and what it means for it. The text is what
// precedes the record, and open the state of open connections.
func connectionOf(text []byte, open string) (id lineNumber, state connectionState, ok bool) {
	if open == "" {
		return id, onlyLine, true
	}
	at := bytes.Index(text, connectionStart)
	if at < 0 {
		return id, onlyLine, true
	}
	rest := text[at+len(connectionStart):]
	if id.process, rest = number(rest); len(rest) == 0 || rest[0] != '/' {
		return id, onlyLine, false
	}
	id.count, rest = number(rest[1:])
	fields := bytes.SplitN(rest, []byte{';'}, 3)
	if len(fields) < 3 || len(fields[0]) > 0 {
		return id, onlyLine, false
	}
	word, _, _ := bytes.Cut(fields[2], []byte{' '})
	target := fields[1]
	switch {
	case string(word) != open:
		return id, lastLine, true
	case len(target) == 0 || target[0] == '-':
		return id, notForwarded, true
	default:
		return id, stillOpen, true
	}
}

// openConnection is what is counted of a connection that is open.
type openConnection struct {
	to             *target
	received, sent uint64
	audited        bool
	seen           time.Duration // since the start of the counter
}

// openConnections are those that the proxy has written a line about and that have not ended.
type openConnections struct {
	begun, swept time.Time
	most         int
	of           map[lineNumber]openConnection
}

func newOpenConnections(most int) *openConnections {
	return &openConnections{begun: time.Now(), most: most, of: make(map[lineNumber]openConnection)}
}

// begin remembers a connection, and reports whether there was room for it.
func (o *openConnections) begin(id lineNumber, connection openConnection) bool {
	if len(o.of) >= o.most && !o.sweep() {
		return false
	}
	connection.seen = time.Since(o.begun)
	o.of[id] = connection
	return true
}

// sweep forgets the connections of former processes, at most once a minute, and reports whether
// there is room.
func (o *openConnections) sweep() bool {
	if time.Since(o.swept) < time.Minute {
		return false
	}
	o.swept = time.Now()
	for id, connection := range o.of {
		if time.Since(o.begun)-connection.seen > forgottenAfter {
			delete(o.of, id)
		}
	}
	return len(o.of) < o.most
}

// addConnection counts a line of a connection that may have several.
func (c *counter) addConnection(to *target, r *record) {
	known, isKnown := c.open.of[r.connection]
	switch {
	case r.state == lastLine && !isKnown:
		c.add(to, r)
		return
	case !isKnown:
		// What is refused ends with a line of its own. A connection without an entry must not be
		// counted, since the next line would count it again.
		if r.state == stillOpen && to.requests == nil && to.reason == "" &&
			c.open.begin(r.connection, openConnection{to: to, received: r.received, sent: r.sent, audited: to.audit != ""}) {
			c.add(to, r)
		}
		return
	}
	// Its first line has found the edge, and only its later ones may know the audit's result.
	e := known.to.edge
	if to.audit != "" && !known.audited {
		e.audited[to.audit]++
		known.audited = true
	}
	e.received += grown(&known.received, r.received)
	e.sent += grown(&known.sent, r.sent)
	if r.state == lastLine {
		delete(c.open.of, r.connection)
		return
	}
	known.seen = time.Since(c.open.begun)
	c.open.of[r.connection] = known
}

// grown returns by how much a number has grown, and replaces it.
func grown(known *uint64, now uint64) uint64 {
	before := *known
	*known = max(before, now)
	return *known - before
}
