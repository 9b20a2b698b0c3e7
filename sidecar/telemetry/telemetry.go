// Package telemetry is the vocabulary of the metrics that every sidecar exports, whatever
// its proxy: their names, labels, reasons and histogram buckets. Drivers, the agent and the
// commands that read metrics use it, so that there is one place to change.
//
// Sidecars serve them at driver.MetricsPort and driver.MetricsPath, before the proxy's own
// metrics. docs/observe.md explains them.
package telemetry

import "slices"

// The names of the metrics.
const (
	Requests        = "outrigger_requests_total"
	RequestDuration = "outrigger_request_duration_seconds"
	RequestBytes    = "outrigger_request_bytes_total"
	ResponseBytes   = "outrigger_response_bytes_total"
	Retries         = "outrigger_retries_total"
	Connections     = "outrigger_tcp_connections_total"
	ReceivedBytes   = "outrigger_tcp_received_bytes_total"
	SentBytes       = "outrigger_tcp_sent_bytes_total"
	Denied          = "outrigger_denied_total"
	AuditDenied     = "outrigger_audit_denied_total"
)

// The labels of every metric, in their order. Their values are names from the mesh's
// configuration and from verified certificates, never bytes of a request, so a client can't
// add series. Unknown values are empty.
const (
	// LabelReporter is ReporterSource or ReporterDestination.
	LabelReporter = "reporter"
	// LabelClass is the sidecar class of the proxy that reports.
	LabelClass = "class"
	// The workload is the owner of the pod, such as a Deployment. It is known for the pod
	// that reports. The other end's service account is the one in its verified certificate.
	LabelSourceWorkload            = "source_workload"
	LabelSourceNamespace           = "source_namespace"
	LabelSourceServiceAccount      = "source_service_account"
	LabelDestinationWorkload       = "destination_workload"
	LabelDestinationNamespace      = "destination_namespace"
	LabelDestinationServiceAccount = "destination_service_account"
	// LabelDestinationService is the name of the service that was chosen, in
	// LabelDestinationNamespace. A server does not know it.
	LabelDestinationService = "destination_service"
	// LabelProtocol is one of the protocols below.
	LabelProtocol = "protocol"
)

// Additional labels of some metrics.
const (
	// LabelResponseCode is the status code of HTTP, "0" if no answer was sent.
	LabelResponseCode = "response_code"
	// LabelGRPCStatus is the number of gRPC's status, empty for other requests.
	LabelGRPCStatus = "grpc_status"
	// LabelTLS is one of the kinds of TLS below.
	LabelTLS = "tls"
	// LabelReason is one of Reasons.
	LabelReason = "reason"
)

// The ends of a request.
const (
	// ReporterSource is the client's sidecar.
	ReporterSource = "source"
	// ReporterDestination is the server's sidecar.
	ReporterDestination = "destination"
)

// The protocols.
const (
	HTTP = "http"
	GRPC = "grpc"
	TCP  = "tcp"
)

// The kinds of TLS between the two ends.
const (
	// MutualTLS is TLS in which both ends have verified each other's identity.
	MutualTLS = "mutual"
	// ServerTLS is TLS in which the server has not asked for an identity.
	ServerTLS = "tls"
	// NoTLS is plaintext, or the application's own TLS, which the proxy does not read.
	NoTLS = "none"
)

// The types of metrics.
const (
	Counter   = "counter"
	Histogram = "histogram"
)

// Metric describes a metric.
type Metric struct {
	// Name is the metric's name and Type Counter or Histogram.
	Name, Type string
	// Help says what it counts.
	Help string
	// Labels are those that follow Labels().
	Labels []string
}

var metrics = []Metric{
	{Requests, Counter, "HTTP requests, including refused ones.", []string{LabelResponseCode, LabelGRPCStatus, LabelTLS}},
	{RequestDuration, Histogram, "Time from the start of an HTTP request to the end of its answer, of those that were answered.", nil},
	{RequestBytes, Counter, "Bytes of HTTP requests.", nil},
	{ResponseBytes, Counter, "Bytes of HTTP answers.", nil},
	{Retries, Counter, "Repetitions of HTTP requests by the client's sidecar.", nil},
	{Connections, Counter, "TCP connections that were forwarded.", []string{LabelTLS}},
	{ReceivedBytes, Counter, "Bytes that clients have sent in TCP connections.", nil},
	{SentBytes, Counter, "Bytes that servers have sent in TCP connections.", nil},
	{Denied, Counter, "Requests and connections that the sidecar itself has refused, by reason.", []string{LabelReason}},
	{AuditDenied, Counter, "Requests and connections that pass the access rules of permissive mode and would not pass the audited ones, by reason.", []string{LabelReason}},
}

var labels = []string{
	LabelReporter, LabelClass, LabelSourceWorkload, LabelSourceNamespace, LabelSourceServiceAccount,
	LabelDestinationWorkload, LabelDestinationNamespace, LabelDestinationServiceAccount, LabelDestinationService, LabelProtocol,
}

var buckets = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}

// failedGRPC are the codes that OpenTelemetry's semantic conventions count as a server's
// errors: UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE and DATA_LOSS.
var failedGRPC = []string{"2", "4", "12", "13", "14", "15"}

// FailedGRPC returns the values of LabelGRPCStatus of calls that failed through the fault of
// the server or the network.
func FailedGRPC() []string { return slices.Clone(failedGRPC) }

// Metrics returns all metrics in the order in which they are exported.
func Metrics() []Metric { return slices.Clone(metrics) }

// Labels returns the labels that every metric has.
func Labels() []string { return slices.Clone(labels) }

// Buckets returns the upper bounds of the buckets of RequestDuration, in seconds.
func Buckets() []float64 { return slices.Clone(buckets) }
