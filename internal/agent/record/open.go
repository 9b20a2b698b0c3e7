package record

import "time"

const (
	// maxOpen bounds the memory for open connections. Further ones are counted when they end.
	maxOpen = 20_000
	// forgottenAfter is when an open connection without lines is forgotten, if there are too
	// many others. Its proxy has crashed.
	forgottenAfter = 10 * time.Minute
)

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
