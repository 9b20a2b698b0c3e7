package envoy

import (
	"fmt"
	"strings"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	celfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// logs are the logs of a kind of requests or connections.
type logs struct {
	// records are for the agent.
	records *accesslogv3.AccessLog
	// lines has one JSON object per line on stdout.
	lines *accesslogv3.AccessLog
	// ofConnections is true if Envoy logs open connections, too, which have no lines.
	ofConnections bool
	// isError is true for those that always get a line. If it is nil, all are errors.
	isError []*accesslogv3.AccessLogFilter
}

func logsOf(side direction, record format) logs {
	refused := []*accesslogv3.AccessLogFilter{expressionFilter(isRefused(side))}
	if strings.HasPrefix(string(record), string(requestFields)) {
		// Other refusals of requests have response flags, and expressions are slow.
		refused = []*accesslogv3.AccessLogFilter{fromStatus(500), allFilters(fromStatus(400), refused[0])}
	}
	return logs{
		records: recordsIf(whereRead, record), lines: stdoutLog(side),
		isError: append([]*accesslogv3.AccessLogFilter{withFlags()}, refused...),
	}
}

// connectionLogs returns the logs of a TCP proxy.
func connectionLogs(side direction, record format) logs {
	of := logsOf(side, record)
	of.records.Filter = whereConnectionsRead
	of.ofConnections = true
	return of
}

// accessLogs returns the logs of requests or connections: the records for the agent and, if
// access logging is on, lines on stdout.
func accessLogs(s *mesh.Settings, chosen logs) []*accesslogv3.AccessLog {
	if !s.AccessLog.Enabled {
		return []*accesslogv3.AccessLog{chosen.records}
	}
	var filters []*accesslogv3.AccessLogFilter
	if chosen.ofConnections {
		filters = append(filters, ended)
	}
	if s.AccessLog.IsSampled() && chosen.isError != nil {
		some := chosen.isError
		if s.AccessLog.Sampled > 0 {
			some = append([]*accesslogv3.AccessLogFilter{share(s.AccessLog.Sampled)}, some...)
		}
		filters = append(filters, anyFilter(some...))
	}
	if len(filters) == 0 {
		return []*accesslogv3.AccessLog{chosen.records, chosen.lines}
	}
	return []*accesslogv3.AccessLog{chosen.records, logIf(allFilters(filters...), chosen.lines)}
}

// silentConnections returns the log of connections to an HTTP port whose client has waited and left
// without a byte, which have no request that could be logged. The connection has a protocol once a
// byte of a request was read, and a flag after bytes that are none.
func silentConnections(s *mesh.Settings) []*accesslogv3.AccessLog {
	if !s.AccessLog.Enabled {
		return nil
	}
	return []*accesslogv3.AccessLog{logIf(allFilters(lasting(telemetry.SilentAfter), expressionFilter("!has(request.protocol) && response.flags == 0")), stdout(map[string]format{
		"bytes_received":           "%BYTES_RECEIVED%",
		"bytes_sent":               "%BYTES_SENT%",
		"connection_close_details": telemetry.Silent,
		"downstream_local":         "%DOWNSTREAM_LOCAL_ADDRESS%",
		"downstream_remote":        "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS%",
		"duration":                 "%DURATION%",
		"response_flags":           "%RESPONSE_FLAGS%",
		"start_time":               "%START_TIME%",
	}))}
}

// lasting is true for what has lasted at least that long.
func lasting(d time.Duration) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_DurationFilter{DurationFilter: &accesslogv3.DurationFilter{
		Comparison: &accesslogv3.ComparisonFilter{
			Op:    accesslogv3.ComparisonFilter_GE,
			Value: &corev3.RuntimeUInt32{DefaultValue: uint32(d.Milliseconds()), RuntimeKey: "outrigger.access_log_silence"},
		},
	}}}
}

// logIf returns a log with a filter.
func logIf(filter *accesslogv3.AccessLogFilter, log *accesslogv3.AccessLog) *accesslogv3.AccessLog {
	return &accesslogv3.AccessLog{Name: log.Name, ConfigType: log.ConfigType, Filter: filter}
}

// share is true for a share of the requests or connections, in millionths.
func share(millionths uint32) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_RuntimeFilter{RuntimeFilter: &accesslogv3.RuntimeFilter{
		RuntimeKey:               "outrigger.access_log_share",
		PercentSampled:           &typev3.FractionalPercent{Numerator: millionths, Denominator: typev3.FractionalPercent_MILLION},
		UseIndependentRandomness: true,
	}}}
}

// fromStatus is true for answers with the status code or a higher one.
func fromStatus(code uint32) *accesslogv3.AccessLogFilter {
	return withStatus(accesslogv3.ComparisonFilter_GE, code)
}

// withStatus compares the status code of answers.
func withStatus(op accesslogv3.ComparisonFilter_Op, code uint32) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_StatusCodeFilter{StatusCodeFilter: &accesslogv3.StatusCodeFilter{
		Comparison: &accesslogv3.ComparisonFilter{
			Op:    op,
			Value: &corev3.RuntimeUInt32{DefaultValue: code, RuntimeKey: fmt.Sprintf("outrigger.access_log_status_%d", code)},
		},
	}}}
}

// withFlags is true if there is one of the response flags, or any without arguments.
func withFlags(flags ...string) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
		ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: flags},
	}}
}

// expressionFilter is true if an expression in CEL is.
func expressionFilter(expression string) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{ExtensionFilter: &accesslogv3.ExtensionFilter{
		Name:       "envoy.access_loggers.extension_filters.cel",
		ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{TypedConfig: pack(&celfilterv3.ExpressionFilter{Expression: expression})},
	}}}
}

func anyFilter(filters ...*accesslogv3.AccessLogFilter) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_OrFilter{OrFilter: &accesslogv3.OrFilter{Filters: filters}}}
}

func allFilters(filters ...*accesslogv3.AccessLogFilter) *accesslogv3.AccessLogFilter {
	if len(filters) == 1 {
		// Envoy requires two.
		return filters[0]
	}
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_AndFilter{AndFilter: &accesslogv3.AndFilter{Filters: filters}}}
}

// stdoutLog uses Open Service Mesh's field names, which its users search for, and adds
// the verified identities and the reasons of refusals.
func stdoutLog(side direction) *accesslogv3.AccessLog {
	return stdout(map[string]format{
		"authority":                "%REQ(:AUTHORITY)%",
		"bytes_received":           "%BYTES_RECEIVED%",
		"bytes_sent":               "%BYTES_SENT%",
		"downstream_failure":       "%DOWNSTREAM_TRANSPORT_FAILURE_REASON%",
		"downstream_local":         "%DOWNSTREAM_LOCAL_ADDRESS%",
		"downstream_peer":          "%DOWNSTREAM_PEER_URI_SAN%",
		"downstream_remote":        "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS%",
		"duration":                 "%DURATION%",
		"method":                   "%REQ(:METHOD)%",
		"path":                     "%REQ(:PATH)%",
		"protocol":                 "%PROTOCOL%",
		"reason":                   "%CEL(" + format(reasonOf(side)) + ")%",
		"requested_server_name":    "%REQUESTED_SERVER_NAME%",
		"request_id":               "%REQ(X-REQUEST-ID)%",
		"response_code":            "%RESPONSE_CODE%",
		"response_code_details":    "%RESPONSE_CODE_DETAILS%",
		"response_flags":           "%RESPONSE_FLAGS%",
		"connection_close_details": "%CONNECTION_TERMINATION_DETAILS%",
		"start_time":               "%START_TIME%",
		"time_to_first_byte":       "%RESPONSE_DURATION%",
		"trace_id":                 "%TRACE_ID%",
		"upstream_cluster":         "%UPSTREAM_CLUSTER%",
		"upstream_failure":         "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
		"upstream_host":            "%UPSTREAM_HOST%",
		"upstream_peer":            "%UPSTREAM_PEER_URI_SAN%",
		"upstream_service_time":    "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%",
		"user_agent":               "%REQ(USER-AGENT)%",
		"x_forwarded_for":          "%REQ(X-FORWARDED-FOR)%",
	})
}

// stdout is a log with one JSON object per line on stdout.
func stdout(fields map[string]format) *accesslogv3.AccessLog {
	return accessLog("envoy.access_loggers.stdout", &streamv3.StdoutAccessLog{
		AccessLogFormat: &streamv3.StdoutAccessLog_LogFormat{LogFormat: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: logFields(fields)},
		}},
	})
}

func logFields(formats map[string]format) *structpb.Struct {
	fields := make(map[string]*structpb.Value, len(formats))
	for name, value := range formats {
		fields[name] = structpb.NewStringValue(string(value))
	}
	return &structpb.Struct{Fields: fields}
}
