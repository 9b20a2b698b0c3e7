package agentspec

// Records lets a proxy that can't export the metrics of package telemetry itself write a
// line for each request and each TCP connection when it ends, and while a connection is open.
// The agent counts the lines and serves the metrics at driver.MetricsPort, which the proxy must
// leave to it.
//
// The proxy writes either to File, or to both file descriptors EnvSpans and EnvRecords, which
// are pipes. A line is
//
//	record=DURATION;RECEIVED;SENT;TRIES;REPORTER;PROTOCOL;CODE;GRPC;TLS;PEER;SERVICE;WHY;AUDIT
//
// AUDIT may be left out. Any text may precede the record, and any text after another semicolon
// may follow it. A hyphen or an empty field means unknown or none.
//
//   - DURATION of a request is in microseconds, or it is END-START, two times in
//     microseconds. It is empty for a request without an answer.
//   - RECEIVED and SENT are the bytes received from the client and sent to it.
//   - TRIES is how often a client's sidecar has sent the request, or r and how often it has
//     repeated it.
//   - REPORTER is "source" or "destination"; lines with others are not counted. PROTOCOL is
//     "http" or "tcp". If it is empty, a line with a CODE is a request, and one without is a
//     connection that is counted only if it was refused.
//   - CODE is the status code of the answer, and GRPC the number of gRPC's status: not empty
//     for gRPC, even if the proxy does not know the number.
//   - TLS is not empty if there is TLS with the other end. PEER is the other end's verified
//     URI; other URIs than a SPIFFE ID of the mesh are ignored.
//   - SERVICE is the service that was called, as NAMESPACE/NAME, after which a colon and any
//     text may follow. It must come from the proxy's configuration.
//   - WHY says why the proxy has refused the request or connection, if it has. It begins with
//     one of telemetry's reasons, or Reasons translate it to one.
//   - AUDIT is AuditDenied if the proxy would have refused the request or connection, had it
//     enforced the rules that it only audits. Any other text means nothing.
//
// If a text of the form "connection=ID;TARGET;STATE " precedes the record, there may be several
// lines about the same connection, whose bytes are those since it began. The agent counts the
// connection with the first one and the differences with the others:
//
//   - ID identifies the connection also after a restart of the proxy. It is two decimal numbers
//     with a slash between them.
//   - TARGET is not empty once the connection is forwarded. Lines before that are not counted.
//   - STATE is Open while the connection is open. Any other one is that of its last line.
//
// If a text of the form "line=ID " precedes the record, the agent counts a line with the same
// ID only once. A proxy that writes to pipes and would rather lose a line than wait writes
// each line to both. An ID is two decimal numbers with a slash between them: the process and
// a number that it counts up.
type Records struct {
	// File, if set, is the absolute path of a named pipe that the agent makes. A proxy that
	// writes to it must wait while it is full.
	File string `json:"file,omitempty"`
	// Metrics is the URL of the proxy's own metrics, which must be on loopback. They are
	// appended.
	Metrics string `json:"metrics"`
	// Open, if set, is the STATE of open connections. The proxy writes a line about them at
	// least once a minute.
	Open string `json:"open,omitempty"`
	// Reasons translate a WHY. The first one that it contains counts.
	Reasons []Reason `json:"reasons,omitempty"`
}

// AuditDenied is the AUDIT of the records that an audit counts.
const AuditDenied = "denied"

// Reason says which reason of package telemetry a text of the proxy's means.
type Reason struct {
	// Text is a part of a WHY.
	Text string `json:"text"`
	// Reason is one of telemetry's reasons, or empty if the proxy has refused nothing.
	Reason string `json:"reason"`
}
