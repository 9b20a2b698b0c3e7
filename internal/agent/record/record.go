package record

import (
	"bytes"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// record is a line of the proxy's about a request or connection; see agentspec.Records.
type record struct {
	micros         uint64
	answered       bool
	received, sent uint64
	retries        uint64
	// state says whether the connection has other records.
	connection lineNumber
	state      connectionState
	// kind is the rest of the line, which many records have in common.
	kind []byte
}

var recordStart = []byte("record=")

// The fields of a kind, by position.
const (
	fieldReporter = iota
	fieldProtocol
	fieldCode
	fieldGRPC
	fieldTLS
	fieldPeer
	fieldService
	fieldWhy
	fieldAudit
	kindFields
)

// neededFields is how many fields of a kind every record has. An older configuration of the
// proxy has no others.
const neededFields = fieldAudit

var auditDenied = []byte(";" + agentspec.AuditDenied)

// parseRecord returns the record in a line, open being the state of open connections. A line
// without one has no kind; a malformed one is an error.
func parseRecord(line []byte, open string) (r record, ok bool) {
	at := bytes.Index(line, recordStart)
	if at < 0 {
		return r, true
	}
	if r.connection, r.state, ok = connectionOf(line[:at], open); !ok {
		return r, false
	}
	rest := line[at+len(recordStart):]
	if r.micros, r.answered, rest, ok = duration(rest); !ok {
		return r, false
	}
	for _, into := range []*uint64{&r.received, &r.sent} {
		var n []byte
		if n, rest, ok = bytes.Cut(rest, []byte{';'}); !ok {
			return r, false
		}
		*into, _ = number(n)
	}
	tries, kind, ok := bytes.Cut(rest, []byte{';'})
	if !ok {
		return r, false
	}
	if repeated, isRepeated := bytes.CutPrefix(tries, []byte("r")); isRepeated {
		r.retries, _ = number(bytes.TrimPrefix(repeated, []byte("+")))
	} else if n, _ := number(tries); n > 1 {
		r.retries = n - 1
	}
	r.kind, ok = kindOf(kind)
	return r, ok
}

// duration reads the first field of a record.
func duration(text []byte) (micros uint64, known bool, rest []byte, ok bool) {
	field, rest, ok := bytes.Cut(text, []byte{';'})
	if !ok || len(field) == 0 || field[0] == '-' {
		return 0, false, rest, ok
	}
	end, start := number(field)
	if len(start) == 0 {
		return end, true, rest, true
	}
	begun, more := number(start[1:])
	if start[0] != '-' || len(start) == 1 || len(more) > 0 {
		// The start is not known.
		return 0, false, rest, true
	}
	if end < begun {
		end = begun
	}
	return end - begun, true, rest, true
}

// kindOf cuts a text after its last field. What may follow differs from line to line.
func kindOf(text []byte) ([]byte, bool) {
	if end := bytes.IndexAny(text, "\r\n"); end >= 0 {
		text = text[:end]
	}
	fields := 1
	for i, c := range text {
		if c != ';' {
			continue
		}
		if fields < neededFields {
			fields++
			continue
		}
		if after, ok := bytes.CutPrefix(text[i:], auditDenied); ok && (len(after) == 0 || after[0] == ';') {
			i += len(auditDenied)
		}
		return text[:i], true
	}
	return text, fields == neededFields
}

// edge identifies the other end of requests or connections. Its values are names from the
// proxy's configuration and from verified certificates.
type edge struct {
	reporter, protocol string
	namespace, account string // the other end's
	service            string
}

// outcome is how requests of an edge have ended.
type outcome struct{ code, grpc, tls string }

// verdict is why a request or connection was refused, and why it would have been refused by
// rules that are only audited. Both may be empty.
type verdict struct{ reason, audit string }

// classify returns what the kind of a record means.
func classify(kind []byte, own mesh.Identity, reasons []agentspec.Reason) (e edge, o outcome, v verdict, ok bool) {
	f := make([]string, kindFields)
	copy(f, strings.SplitN(string(kind), ";", kindFields))
	for i := range f {
		if f[i] == "-" {
			f[i] = ""
		}
	}
	e.reporter, e.protocol = f[fieldReporter], f[fieldProtocol]
	o = outcome{code: statusCode(f[fieldCode]), tls: telemetry.NoTLS}
	v.reason = reasonOf(f[fieldWhy], reasons)
	switch {
	case e.reporter != telemetry.ReporterSource && e.reporter != telemetry.ReporterDestination,
		e.protocol == "" && o.code == noCode && v.reason == "":
		return e, o, verdict{}, false
	case e.protocol == "" && o.code == noCode:
		e.protocol = telemetry.TCP
	case e.protocol != telemetry.TCP:
		e.protocol = telemetry.HTTP
	}
	if f[fieldGRPC] != "" && e.protocol == telemetry.HTTP {
		e.protocol, o.grpc = telemetry.GRPC, grpcStatus(f[fieldGRPC])
	}
	peer, err := mesh.ParseIdentity(f[fieldPeer])
	// Anybody can write any name into a certificate that nobody has verified.
	known := err == nil && peer.TrustDomain == own.TrustDomain && v.reason != telemetry.ReasonCertificate
	if known {
		e.namespace, e.account = peer.Namespace, peer.ServiceAccount
	}
	switch {
	case f[fieldTLS] != "" && known:
		o.tls = telemetry.MutualTLS
	case f[fieldTLS] != "":
		o.tls = telemetry.ServerTLS
	}
	if namespace, name, ok := strings.Cut(f[fieldService], "/"); ok {
		e.namespace = namespace
		e.service, _, _ = strings.Cut(name, ":")
	}
	if f[fieldAudit] == agentspec.AuditDenied {
		// Access rules name identities, and a caller without TLS has none.
		if v.audit = telemetry.ReasonAccess; o.tls == telemetry.NoTLS {
			v.audit = telemetry.ReasonPlaintext
		}
	}
	return e, o, v, true
}

// reasonOf translates what the proxy says about a refusal.
func reasonOf(why string, reasons []agentspec.Reason) string {
	if first, _, _ := strings.Cut(why, " "); telemetry.IsReason(first) {
		return first
	}
	for _, r := range reasons {
		if strings.Contains(why, r.Text) {
			return r.Reason
		}
	}
	return ""
}

// noCode is the status code of a request without an answer.
const noCode = "0"

// statusCode returns a status code of HTTP, or noCode.
func statusCode(text string) string {
	if len(text) != 3 || strings.Trim(text, "0123456789") != "" || text[0] == '0' {
		return noCode
	}
	return text
}

// grpcStatus returns a status of gRPC, of which there are 17, or "".
func grpcStatus(text string) string {
	n, rest := number([]byte(text))
	if len(text) == 0 || len(text) > 2 || len(rest) > 0 || n > 16 {
		return ""
	}
	return text
}
