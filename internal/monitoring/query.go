package monitoring

import (
	"fmt"
	"strings"

	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// Labels that Prometheus adds to what it scrapes. The job is the name of the Service that the
// chart's ServiceMonitor selects, or for a PodMonitor "NAMESPACE/NAME". A PodMonitor adds the
// other two.
const (
	labelJob       = "job"
	labelNamespace = "namespace"
	labelPod       = "pod"
	labelInstance  = "instance"
	labelBound     = "le"
)

// Metrics of other projects that the control plane and Envoy export, and Prometheus' own.
const (
	up                  = "up"
	processCPU          = "process_cpu_seconds_total"
	processMemory       = "process_resident_memory_bytes"
	leaderStatus        = "leader_election_master_status"
	leaderName          = "name"
	envoyControlPlane   = "envoy_control_plane_connected_state"
	controllerJob       = "outrigger-controller"
	injectorJobs        = "outrigger-injector.*"
	controlPlaneJobs    = "outrigger-(controller|injector.*)"
	sidecarJobs         = ".+/outrigger-sidecars"
	leaderElection      = "outrigger-controller"
	bucket              = "_bucket"
	fromDashboard       = "$__rate_interval"
	fromAlert           = "5m"
	sumOfNothing        = "vector(0)"
	unknownResponseCode = "0"
)

// is, isNot, like and unlike are matchers of labels.
func is(label, value string) string     { return fmt.Sprintf("%s=%q", label, value) }
func isNot(label, value string) string  { return fmt.Sprintf("%s!=%q", label, value) }
func like(label, regex string) string   { return fmt.Sprintf("%s=~%q", label, regex) }
func unlike(label, regex string) string { return fmt.Sprintf("%s!~%q", label, regex) }

// series selects the series of a metric.
func series(metric string, matchers ...string) string {
	if len(matchers) == 0 {
		return metric
	}
	return metric + "{" + strings.Join(matchers, ",") + "}"
}

func sum(expr string, by ...string) string {
	if len(by) == 0 {
		return "sum(" + expr + ")"
	}
	return "sum by (" + strings.Join(by, ", ") + ") (" + expr + ")"
}

func rate(series, window string) string     { return "rate(" + series + "[" + window + "])" }
func increase(series, window string) string { return "increase(" + series + "[" + window + "])" }

// orZero is 0 in place of no series.
func orZero(expr string) string { return expr + " or " + sumOfNothing }

// quantile is a quantile of a histogram, by labels.
func quantile(q float64, metric, window string, matchers []string, by ...string) string {
	return fmt.Sprintf("histogram_quantile(%g, %s)", q, sum(rate(series(metric+bucket, matchers...), window), append([]string{labelBound}, by...)...))
}

// requests is the rate of requests, by labels.
func requests(window string, matchers []string, by ...string) string {
	return sum(rate(series(telemetry.Requests, matchers...), window), by...)
}

// success is the share of requests that did not fail, by labels, as 'outrigger stat' counts it.
// Without a successful one it is 0.
func success(window string, matchers []string, by ...string) string {
	all := requests(window, matchers, by...)
	good := append([]string{
		unlike(telemetry.LabelResponseCode, "5..|"+unknownResponseCode),
		unlike(telemetry.LabelGRPCStatus, strings.Join(telemetry.FailedGRPC(), "|")),
	}, matchers...)
	return fmt.Sprintf("(%s or 0 * %s) / %s", requests(window, good, by...), all, all)
}
