package record

import "bytes"

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
