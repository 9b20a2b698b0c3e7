package record

// counts are those of an edge.
type counts struct {
	requests    map[outcome]*uint64
	connections map[string]uint64 // by TLS
	denied      map[string]uint64 // by reason
	audited     map[string]uint64 // what would have been denied, by reason
	durations   []uint64          // by bucket; the last one has no upper bound
	micros      uint64            // sum of durations
	// received and sent are those of requests, or of connections.
	received, sent, retries uint64
}

// target is what a kind of records is counted as. TCP connections have no requests, and what
// is not counted no edge.
type target struct {
	edge     *counts
	requests *uint64
	answered bool
	tls      string
	verdict
}
