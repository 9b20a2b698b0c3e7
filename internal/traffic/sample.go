package traffic

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"unicode"
	"unique"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// Sample is what a proxy has counted from its start until a moment.
//
// The controller holds the Samples of all proxies during a period. Handles keep them small,
// since the pods of a workload have mostly the same series.
type Sample map[unique.Handle[Series]]float64

// Series identifies a number in a Sample.
type Series struct {
	Metric            string
	Reporter          string
	Source            End
	Destination       End
	Service, Protocol string
	// Code, GRPC, TLS, Reason and Bound are the labels that only some metrics have.
	Code, GRPC, TLS, Reason, Bound string
}

// ErrNoMetrics is the error of Parse for metrics that have none of package telemetry's.
var ErrNoMetrics = errors.New("its sidecar does not export the metrics of the mesh: it is older than this version, so restart its workload")

// prefix is that of all names of package telemetry.
const prefix = "outrigger_"

// maxMetrics limits the metrics of one proxy, in bytes.
const maxMetrics = 16 << 20

// Parse reads the metrics of a proxy. It reads only those of package telemetry, which come
// first.
func Parse(r io.Reader) (Sample, error) {
	text, found, audits, err := own(r)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, ErrNoMetrics
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("reading its metrics: %w", err)
	}
	sample := make(Sample)
	if audits {
		sample[unique.Make(auditSeries)] = 0
	}
	for name, family := range families {
		for _, m := range family.GetMetric() {
			labels := make(map[string]string, len(m.GetLabel()))
			for _, label := range m.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			sample.Add(name, labels, value(m))
		}
	}
	return sample, nil
}

// auditSeries is in the Sample of each proxy that counts audits, even of nothing.
var auditSeries = Series{Metric: telemetry.AuditDenied}

// CountsAudits reports whether the proxy counts what audited policies would refuse. Older
// sidecars do not.
func (s Sample) CountsAudits() bool {
	_, ok := s[unique.Make(auditSeries)]
	return ok
}

// own returns the samples of package telemetry's metrics, and whether it has found any of its
// metrics, and that of audits, even without samples.
func own(r io.Reader) (text []byte, found, audits bool, err error) {
	lines := bufio.NewScanner(io.LimitReader(r, maxMetrics))
	lines.Buffer(nil, maxMetrics)
	for lines.Scan() {
		line := lines.Bytes()
		switch {
		case bytes.HasPrefix(line, []byte(prefix)):
			found = true
			text = append(append(text, line...), '\n')
		case bytes.HasPrefix(line, []byte("#")):
			// Without the types, the parser returns the series of a histogram as they are
			// written.
			found = found || bytes.Contains(line, []byte(" "+prefix))
			audits = audits || bytes.Contains(line, []byte(" "+telemetry.AuditDenied+" "))
		case found && len(bytes.TrimSpace(line)) > 0:
			// The proxy's own metrics follow, which can be many.
			return text, found, audits, nil
		}
	}
	if err := lines.Err(); err != nil {
		return nil, false, false, fmt.Errorf("reading its metrics: %w", err)
	}
	return text, found, audits, nil
}

func value(m *dto.Metric) float64 {
	switch {
	case m.Untyped != nil:
		return m.Untyped.GetValue()
	case m.Counter != nil:
		return m.Counter.GetValue()
	}
	return math.NaN()
}

// Add adds a number to the Sample. Numbers that no counter can have are ignored.
func (s Sample) Add(metric string, labels map[string]string, n float64) {
	if !(n >= 0) || math.IsInf(n, 0) {
		return
	}
	label := func(name string) string { return printable(labels[name]) }
	s[unique.Make(Series{
		Metric: metric, Reporter: label(telemetry.LabelReporter),
		Source:      End{label(telemetry.LabelSourceNamespace), label(telemetry.LabelSourceWorkload), label(telemetry.LabelSourceServiceAccount)},
		Destination: End{label(telemetry.LabelDestinationNamespace), label(telemetry.LabelDestinationWorkload), label(telemetry.LabelDestinationServiceAccount)},
		Service:     label(telemetry.LabelDestinationService), Protocol: label(telemetry.LabelProtocol),
		Code: label(telemetry.LabelResponseCode), GRPC: label(telemetry.LabelGRPCStatus), TLS: label(telemetry.LabelTLS),
		Reason: label(telemetry.LabelReason), Bound: label(model.BucketLabel),
	})] += n
}

// printable replaces the characters that could change how a terminal shows the text. Labels
// are the word of a pod, which may not be what it should be.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}
