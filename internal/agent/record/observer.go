package record

import (
	"log/slog"
	"net"
	"os"
	"strconv"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// Observer reads what the proxy writes about its requests: it counts records and serves the
// counts, and sends spans to a collector.
type Observer struct {
	lines      *lines
	exporter   *exporter   // nil without spans
	counter    *counter    // nil without records
	exposition *exposition // of the counter
	listener   net.Listener
}

// New makes the pipes of a Spec. If the proxy leaves its metrics to the agent, it
// listens for Prometheus on the address.
func New(spec *agentspec.Spec, workload Workload, address string, timings kit.Timings, log *slog.Logger, metrics *kit.Metrics) (*Observer, error) {
	lines, err := newLines(spec, log)
	if err != nil {
		return nil, err
	}
	o := &Observer{lines: lines}
	if spec.Spans != nil {
		o.exporter = newExporter(spec, lines.closed, timings, log, metrics)
	}
	if spec.Records != nil {
		if o.listener, err = net.Listen("tcp", address); err != nil {
			return nil, err
		}
		o.counter = newCounter(workload, spec.Records, metrics)
		o.exposition = newExposition(o.counter, spec.Records.Metrics, log)
	}
	return o, nil
}

// Pipes returns the ends of the pipes to which the proxy writes. They are its first file
// descriptors after those of its input and output.
func (o *Observer) Pipes() []*os.File { return o.lines.passed }

// Env returns the environment variables that tell the proxy the pipes, as NAME=VALUE.
func (o *Observer) Env() []string {
	var env []string
	for i, name := range o.lines.names {
		env = append(env, name+"="+strconv.Itoa(firstLineFD+i))
	}
	return env
}

// Start begins to read.
func (o *Observer) Start() {
	tooLong := func(error) {}
	var handlers []func([]byte)
	if o.exporter != nil {
		handlers, tooLong = append(handlers, o.exporter.read), func(err error) { o.exporter.lose(1, err) }
		go o.exporter.run()
	}
	if o.counter != nil {
		handlers = append(handlers, o.counter.count)
	}
	o.lines.start(handlers, tooLong)
}

// Serve serves the counts of a Spec with Records, until it fails.
func (o *Observer) Serve() error { return o.exposition.http().Serve(o.listener) }

// Finish must be called once the proxy has ended. It waits until its last spans are sent, but
// not for long.
func (o *Observer) Finish() {
	o.lines.finish()
	if o.exporter != nil {
		o.exporter.finish()
	}
}
