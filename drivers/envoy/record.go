package envoy

import (
	"path"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// recordsFile is where the agent reads records. In a pod whose agent does not, the runtime
// key is not set, and it stays empty.
var recordsFile = path.Join(driver.RunDir, "records")

// Runtime keys of pods whose agent reads records, and whose agent also reads those of open
// connections.
const recordsKey, openKey = "outrigger.records", "outrigger.records_of_open_connections"

// openInterval is how often there is a record of an open connection.
const openInterval = 5 * time.Second

// The parts of records, see agentspec.Records. Each WHY begins with where it is from.
const (
	requestFields    = "record=%COMMON_DURATION(DS_RX_BEG:DS_TX_END:us)%;%BYTES_RECEIVED%;%BYTES_SENT%;%UPSTREAM_REQUEST_ATTEMPT_COUNT%;"
	connectionFields = "record=-;%BYTES_RECEIVED%;%BYTES_SENT%;-;"
	forwarded        = "connection=%START_TIME(%s%6f)%/%CONNECTION_ID%;%UPSTREAM_LOCAL_PORT%;%ACCESS_LOG_TYPE% " + connectionFields
	status           = ";%RESPONSE_CODE%;%GRPC_STATUS_NUMBER%;"
	noStatus         = ";-;-;"
	client           = "%DOWNSTREAM_TLS_VERSION%;%DOWNSTREAM_PEER_URI_SAN%;-;"
	server           = "%UPSTREAM_TLS_VERSION%;%UPSTREAM_PEER_URI_SAN%;"
	why              = " %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% "
	whyInbound       = format(atInbound) + why + "%DOWNSTREAM_TRANSPORT_FAILURE_REASON%"
	auditHTTP        = ";%DYNAMIC_METADATA(" + rbacFilter + ":shadow_engine_result)%\n"
	auditTCP         = ";%DYNAMIC_METADATA(" + networkRBACFilter + ":shadow_engine_result)%\n"
	whyOutbound      = format(atOutbound) + why + "%UPSTREAM_TRANSPORT_FAILURE_REASON%\n"
	whyEgress        = format(atEgress) + why + "%UPSTREAM_TRANSPORT_FAILURE_REASON%\n"
	whyUnmatched     = format(atUnmatched) + why + "\n"
	ofSource         = telemetry.ReporterSource + ";" + telemetry.HTTP
	ofSourceTCP      = telemetry.ReporterSource + ";" + telemetry.TCP
	ofDestination    = telemetry.ReporterDestination + ";" + telemetry.HTTP
	ofDestinationTCP = telemetry.ReporterDestination + ";" + telemetry.TCP
)

// The logs of each kind of listener. Clusters outside the mesh are no services.
var (
	inboundRequests     = logsOf(atInbound, requestFields+ofDestination+status+client+whyInbound+auditHTTP)
	inboundConnections  = connectionLogs(atInbound, forwarded+ofDestinationTCP+noStatus+client+whyInbound+auditTCP)
	outboundRequests    = logsOf(atOutbound, requestFields+ofSource+status+server+"%UPSTREAM_CLUSTER_RAW%;"+whyOutbound)
	outboundConnections = connectionLogs(atOutbound, forwarded+ofSourceTCP+noStatus+server+"%UPSTREAM_CLUSTER_RAW%;"+whyOutbound)
	egressRequests      = logsOf(atEgress, requestFields+ofSource+status+server+"-;"+whyEgress)
	egressConnections   = connectionLogs(atEgress, forwarded+ofSourceTCP+noStatus+server+"-;"+whyEgress)

	// plaintextConnections are those for which the proxy does no TLS. Envoy's TLS inspector
	// leaves a failure in them, since it has found no ClientHello.
	plaintextConnections = connectionLogs(atPlaintext, forwarded+ofDestinationTCP+noStatus+client+format(atPlaintext)+why+auditTCP)

	// unmatchedConnections are those that match no filter chain.
	unmatchedConnections = logs{
		records: recordsIf(allFilters(whereRead, noRoute), connectionFields+ofDestinationTCP+noStatus+"-;-;-;"+whyUnmatched),
		lines:   logIf(noRoute, stdoutLog(atUnmatched)),
	}
)

var (
	// whereRead is true in pods whose agent reads records.
	whereRead = whereSet(recordsKey)
	// whereConnectionsRead is true there at the end of a connection and, if the agent can read
	// such a record, also while it is open.
	whereConnectionsRead = allFilters(whereRead, anyFilter(ended, whereSet(openKey)))
	// ended is true at the end of a connection.
	ended = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_LogTypeFilter{LogTypeFilter: &accesslogv3.LogTypeFilter{
		Types: []accesslogdatav3.AccessLogType{accesslogdatav3.AccessLogType_TcpPeriodic}, Exclude: true,
	}}}
	// noRoute is true for connections that no filter chain takes.
	noRoute = withFlags("NR")
)

// stateOpen is how Envoy calls the lines of open connections.
var stateOpen = accesslogdatav3.AccessLogType_TcpPeriodic.String()

// whereSet is true if the bootstrap sets a runtime key to 100.
func whereSet(key string) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_RuntimeFilter{RuntimeFilter: &accesslogv3.RuntimeFilter{
		RuntimeKey: key, PercentSampled: &typev3.FractionalPercent{Numerator: 0},
		UseIndependentRandomness: true,
	}}}
}

func recordsIf(filter *accesslogv3.AccessLogFilter, line format) *accesslogv3.AccessLog {
	log := accessLog("envoy.access_loggers.file", &filev3.FileAccessLog{
		Path: recordsFile,
		AccessLogFormat: &filev3.FileAccessLog_LogFormat{LogFormat: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: string(line)},
			}},
		}},
	})
	log.Filter = filter
	return log
}
