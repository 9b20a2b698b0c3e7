package traffic

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// bucketMetric is the name of the series that have a histogram's buckets.
const bucketMetric = telemetry.RequestDuration + "_bucket"

// Flows returns what a pod's proxy has counted between two Samples, sorted. With a nil before,
// it returns what the proxy has counted since its start.
//
// A counter that is lower than before has started again at zero, as it does when the proxy is
// restarted, so all that it has now is new. For a histogram this is decided for all buckets
// together.
func Flows(pod *Pod, before, after Sample) []Flow {
	again := restarted(before, after)
	type key struct {
		reporter            string
		source, destination End
		service, protocol   string
	}
	flows := make(map[key]*Flow)
	bounds := make(map[*Flow]map[float64]float64)
	for handle, n := range after {
		series := handle.Value()
		if !again[series.counter()] {
			n -= before[handle]
		}
		// Empty buckets are kept, since their bounds are the lower ones of others.
		if n == 0 && series.Metric != bucketMetric {
			continue
		}
		series.own(pod)
		k := key{series.Reporter, series.Source, series.Destination, series.Service, series.Protocol}
		flow := flows[k]
		if flow == nil {
			flow = &Flow{Reporter: k.reporter, Source: k.source, Destination: k.destination, Service: k.service, Protocol: k.protocol}
			flows[k] = flow
			bounds[flow] = make(map[float64]float64)
		}
		if series.Metric != bucketMetric {
			flow.take(series, n)
		} else if bound, err := strconv.ParseFloat(series.Bound, 64); err == nil && !math.IsNaN(bound) {
			bounds[flow][bound] += n
		}
	}
	var all []Flow
	for _, flow := range flows {
		flow.Durations = fromCumulative(bounds[flow])
		if !flow.isZero() {
			all = append(all, *flow)
		}
	}
	slices.SortFunc(all, compareFlows)
	return all
}

// counter returns the part of a Series that identifies a counter or a whole histogram.
func (s Series) counter() Series {
	s.Bound = ""
	return s
}

// restarted returns the counters that started again between two Samples.
func restarted(before, after Sample) map[Series]bool {
	again := make(map[Series]bool)
	for handle, n := range after {
		if n < before[handle] {
			again[handle.Value().counter()] = true
		}
	}
	return again
}

// own replaces what the proxy says about its own end by what the mesh knows of its pod.
func (s *Series) own(pod *Pod) {
	end := &s.Destination
	if s.Reporter == telemetry.ReporterSource {
		end = &s.Source
	}
	*end = End{
		Namespace:      cmp.Or(pod.Namespace, end.Namespace),
		Workload:       cmp.Or(pod.Owner.Name, end.Workload),
		ServiceAccount: cmp.Or(pod.ServiceAccount, end.ServiceAccount),
	}
}

// take adds the increase of a counter.
func (f *Flow) take(series Series, n float64) {
	switch series.Metric {
	case telemetry.Requests:
		f.Requests += n
		if failed(series.Code, series.GRPC) {
			f.Failed += n
		}
		code := cmp.Or(series.Code, "0")
		if series.GRPC != "" {
			code = "grpc " + series.GRPC
		}
		increase(&f.Codes, code, n)
		increase(&f.TLS, cmp.Or(series.TLS, telemetry.NoTLS), n)
	case telemetry.Connections:
		f.Connections += n
		increase(&f.TLS, cmp.Or(series.TLS, telemetry.NoTLS), n)
	case telemetry.RequestBytes, telemetry.ReceivedBytes:
		f.Received += n
	case telemetry.ResponseBytes, telemetry.SentBytes:
		f.Sent += n
	case telemetry.Retries:
		f.Retries += n
	case telemetry.Denied:
		increase(&f.Denied, series.Reason, n)
	case telemetry.AuditDenied:
		increase(&f.AuditDenied, series.Reason, n)
	}
}

var failedGRPC = telemetry.FailedGRPC()

// failed reports whether a request failed through the fault of the server or the network:
// there was no answer, or one with a code of 500 or above, or one of failedGRPC.
func failed(code, grpc string) bool {
	if slices.Contains(failedGRPC, grpc) {
		return true
	}
	number, err := strconv.Atoi(code)
	return err != nil || number == 0 || number >= 500
}

// fromCumulative returns the Histogram of counts up to each bound.
func fromCumulative(counts map[float64]float64) Histogram {
	var h Histogram
	below := 0.0
	for _, bound := range slices.Sorted(maps.Keys(counts)) {
		// A histogram that changes while it is read can be inconsistent.
		n := max(counts[bound]-below, 0)
		below = max(below, counts[bound])
		if math.IsInf(bound, 1) {
			h.Over += n
		} else {
			h.count(bound, n)
		}
	}
	if h.total() == 0 {
		return Histogram{}
	}
	return h
}

func compareFlows(a, b Flow) int {
	return cmp.Or(
		cmp.Compare(a.Reporter, b.Reporter), compareEnds(a.Source, b.Source), compareEnds(a.Destination, b.Destination),
		cmp.Compare(a.Service, b.Service), cmp.Compare(a.Protocol, b.Protocol),
	)
}
