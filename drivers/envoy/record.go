package envoy

import (
	"path"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// recordsFile is where the agent reads records. In a pod whose agent does not, the runtime
// key is not set, and it stays empty.
var recordsFile = path.Join(driver.RunDir, "records")

const recordsKey = "outrigger.records"

// The parts of records, see agentspec.Records. Each WHY begins with where it is from.
const (
	requestFields    = "record=%COMMON_DURATION(DS_RX_BEG:DS_TX_END:us)%;%BYTES_RECEIVED%;%BYTES_SENT%;%UPSTREAM_REQUEST_ATTEMPT_COUNT%;"
	connectionFields = "record=-;%BYTES_RECEIVED%;%BYTES_SENT%;-;"
	status           = ";%RESPONSE_CODE%;%GRPC_STATUS_NUMBER%;"
	noStatus         = ";-;-;"
	client           = "%DOWNSTREAM_TLS_VERSION%;%DOWNSTREAM_PEER_URI_SAN%;-;"
	server           = "%UPSTREAM_TLS_VERSION%;%UPSTREAM_PEER_URI_SAN%;"
	why              = " %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% "
	whyInbound       = string(atInbound) + why + "%DOWNSTREAM_TRANSPORT_FAILURE_REASON%"
	auditHTTP        = ";%DYNAMIC_METADATA(" + rbacFilter + ":shadow_engine_result)%\n"
	auditTCP         = ";%DYNAMIC_METADATA(" + networkRBACFilter + ":shadow_engine_result)%\n"
	whyOutbound      = string(atOutbound) + why + "%UPSTREAM_TRANSPORT_FAILURE_REASON%\n"
	whyEgress        = string(atEgress) + why + "%UPSTREAM_TRANSPORT_FAILURE_REASON%\n"
	whyUnmatched     = string(atUnmatched) + why + "\n"
	ofSource         = telemetry.ReporterSource + ";" + telemetry.HTTP
	ofSourceTCP      = telemetry.ReporterSource + ";" + telemetry.TCP
	ofDestination    = telemetry.ReporterDestination + ";" + telemetry.HTTP
	ofDestinationTCP = telemetry.ReporterDestination + ";" + telemetry.TCP
)

// The logs of each kind of listener. Clusters outside the mesh are no services.
var (
	inboundRequests     = logsOf(atInbound, requestFields+ofDestination+status+client+whyInbound+auditHTTP)
	inboundConnections  = logsOf(atInbound, connectionFields+ofDestinationTCP+noStatus+client+whyInbound+auditTCP)
	outboundRequests    = logsOf(atOutbound, requestFields+ofSource+status+server+"%UPSTREAM_CLUSTER_RAW%;"+whyOutbound)
	outboundConnections = logsOf(atOutbound, connectionFields+ofSourceTCP+noStatus+server+"%UPSTREAM_CLUSTER_RAW%;"+whyOutbound)
	egressRequests      = logsOf(atEgress, requestFields+ofSource+status+server+"-;"+whyEgress)
	egressConnections   = logsOf(atEgress, connectionFields+ofSourceTCP+noStatus+server+"-;"+whyEgress)

	// plaintextConnections are those for which the proxy does no TLS. Envoy's TLS inspector
	// leaves a failure in them, since it has found no ClientHello.
	plaintextConnections = logsOf(atPlaintext, connectionFields+ofDestinationTCP+noStatus+client+string(atPlaintext)+why+auditTCP)

	// unmatchedConnections are those that match no filter chain.
	unmatchedConnections = logs{
		records: recordsIf(andNoRoute, connectionFields+ofDestinationTCP+noStatus+"-;-;-;"+whyUnmatched),
		lines:   logIf(noRoute, stdoutLog(atUnmatched)),
	}
)

// whereRead is true in pods whose agent reads records.
var whereRead = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_RuntimeFilter{RuntimeFilter: &accesslogv3.RuntimeFilter{
	RuntimeKey: recordsKey, PercentSampled: &typev3.FractionalPercent{Numerator: 0},
	UseIndependentRandomness: true,
}}}

// andNoRoute is true in such pods for connections that no filter chain takes.
var andNoRoute = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_AndFilter{AndFilter: &accesslogv3.AndFilter{
	Filters: []*accesslogv3.AccessLogFilter{whereRead, noRoute},
}}}

// noRoute is true for connections that no filter chain takes.
var noRoute = withFlags("NR")

func recordsIf(filter *accesslogv3.AccessLogFilter, format string) *accesslogv3.AccessLog {
	log := accessLog("envoy.access_loggers.file", &filev3.FileAccessLog{
		Path: recordsFile,
		AccessLogFormat: &filev3.FileAccessLog_LogFormat{LogFormat: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: format},
			}},
		}},
	})
	log.Filter = filter
	return log
}
