package envoy

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// accessLogs returns the logs of requests or connections: the records for the agent and, if
// access logging is on, one JSON object per line on stdout.
func accessLogs(s *mesh.Settings, records *accesslogv3.AccessLog) []*accesslogv3.AccessLog {
	if !s.AccessLog.Enabled {
		return []*accesslogv3.AccessLog{records}
	}
	return append([]*accesslogv3.AccessLog{records}, stdoutLogs...)
}

// stdoutLogs uses Open Service Mesh's field names, which its users search for, and adds
// the verified identities.
var stdoutLogs = []*accesslogv3.AccessLog{accessLog("envoy.access_loggers.stdout", &streamv3.StdoutAccessLog{
	AccessLogFormat: &streamv3.StdoutAccessLog_LogFormat{LogFormat: &corev3.SubstitutionFormatString{
		Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: logFields(map[string]string{
			"authority":                "%REQ(:AUTHORITY)%",
			"bytes_received":           "%BYTES_RECEIVED%",
			"bytes_sent":               "%BYTES_SENT%",
			"downstream_failure":       "%DOWNSTREAM_TRANSPORT_FAILURE_REASON%",
			"downstream_peer":          "%DOWNSTREAM_PEER_URI_SAN%",
			"downstream_remote":        "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS%",
			"duration":                 "%DURATION%",
			"method":                   "%REQ(:METHOD)%",
			"path":                     "%REQ(:PATH)%",
			"protocol":                 "%PROTOCOL%",
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
		})},
	}},
})}

func logFields(formats map[string]string) *structpb.Struct {
	fields := make(map[string]*structpb.Value, len(formats))
	for name, format := range formats {
		fields[name] = structpb.NewStringValue(format)
	}
	return &structpb.Struct{Fields: fields}
}
