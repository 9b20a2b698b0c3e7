package record

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/bell"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

const (
	// spansAtOnce is how many spans are sent in one request, and maxSpans how many wait at
	// most.
	spansAtOnce = 500
	maxSpans    = 20 * spansAtOnce
)

// exporter sends the spans that the proxy writes to a collector. It neither delays the proxy
// nor grows while the collector is away: it counts spans as lost instead.
type exporter struct {
	// collector is the file with the Collector, and sender sends to the last one that was
	// read from it, configured.
	collector  string
	configured []byte
	sender     spanSender

	timings    kit.Timings
	log        *slog.Logger
	metrics    *kit.Metrics
	closed     <-chan struct{} // closed when nothing more is read
	ended      chan struct{}   // closed when run has returned
	some, many bell.Bell       // ring when a span waits, and when enough for a request do

	mu         sync.Mutex
	waiting    []*finishedSpan
	complained time.Time // when lost spans were last logged
}

// newExporter returns an exporter of the spans in lines that end when closed is.
func newExporter(spec *agentspec.Spec, closed <-chan struct{}, timings kit.Timings, log *slog.Logger, metrics *kit.Metrics) *exporter {
	return &exporter{
		collector: filepath.Join(spec.Mirror.Dir, spec.Spans.Collector),
		timings:   timings, log: log, metrics: metrics,
		closed: closed, ended: make(chan struct{}), some: bell.New(), many: bell.New(),
	}
}

// finish waits until the spans of a proxy that has ended are sent, but not for long.
func (e *exporter) finish() {
	select {
	case <-e.ended:
	case <-time.After(e.timings.Collect):
	}
}

// read reads a line.
func (e *exporter) read(line []byte) {
	span, err := parseSpan(line)
	if err != nil {
		e.lose(1, fmt.Errorf("the proxy has written no span but %q: %w", kit.OneLine(string(line)), err))
	}
	if span != nil {
		e.add(span)
	}
}

// parseSpan returns the span of a line, or nil if it has none.
func parseSpan(line []byte) (*finishedSpan, error) {
	at := bytes.IndexByte(line, '{')
	if at < 0 {
		return nil, nil
	}
	var span agentspec.Span
	if err := json.NewDecoder(bytes.NewReader(line[at:])).Decode(&span); err != nil {
		return nil, err
	}
	if span.TraceID == "" {
		return nil, nil
	}
	return finished(span)
}

func (e *exporter) add(span *finishedSpan) {
	e.mu.Lock()
	n := len(e.waiting) + 1
	if n <= maxSpans {
		e.waiting = append(e.waiting, span)
	}
	e.mu.Unlock()
	switch {
	case n > maxSpans:
		e.lose(1, fmt.Errorf("%d spans wait for the collector", maxSpans))
	case n == 1:
		e.some.Ring()
	case n >= spansAtOnce:
		e.many.Ring()
	}
}

// take removes the spans for one request.
func (e *exporter) take() []*finishedSpan {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := min(len(e.waiting), spansAtOnce)
	taken := e.waiting[:n:n]
	e.waiting = e.waiting[n:]
	return taken
}

// lose counts lost spans. The log has those of a minute as one entry at most, since a
// collector may be away for long.
func (e *exporter) lose(n int, why error) {
	e.metrics.SpansLost.Add(int64(n))
	e.mu.Lock()
	defer e.mu.Unlock()
	if now := time.Now(); now.Sub(e.complained) >= time.Minute {
		e.complained = now
		e.log.Warn("spans are lost", "error", why, "lost", e.metrics.SpansLost.Load())
	}
}

// run sends spans until the pipe is closed.
func (e *exporter) run() {
	defer close(e.ended)
	for {
		select {
		case <-e.closed:
			e.sendAll()
			return
		case <-e.some:
		}
		select {
		case <-e.closed:
		case <-e.many:
		case <-time.After(e.timings.Spans):
		}
		e.sendAll()
	}
}

func (e *exporter) sendAll() {
	for spans := e.take(); len(spans) > 0; spans = e.take() {
		ctx, cancel := context.WithTimeout(context.Background(), e.timings.Collect)
		err := e.configure()
		if err == nil {
			err = e.sender.send(ctx, spans)
		}
		cancel()
		if err != nil {
			e.lose(len(spans), err)
			continue
		}
		e.metrics.SpansSent.Add(int64(len(spans)))
	}
}

// configure reads the Collector, and replaces the sender if it has changed.
func (e *exporter) configure() error {
	text, err := os.ReadFile(e.collector)
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("the proxy's files name no collector")
	}
	if err != nil {
		return err
	}
	if e.sender != nil && bytes.Equal(text, e.configured) {
		return nil
	}
	var collector agentspec.Collector
	if err := json.Unmarshal(text, &collector); err != nil {
		return fmt.Errorf("%s: %w", e.collector, err)
	}
	sender, err := newSpanSender(collector)
	if err != nil {
		return fmt.Errorf("%s: %w", e.collector, err)
	}
	if e.sender != nil {
		e.sender.close()
	}
	e.sender, e.configured = sender, text
	return nil
}
