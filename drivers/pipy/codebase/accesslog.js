// The access log: one line of JSON on standard output for each request and connection,
// with Open Service Mesh's field names. There may be lines for errors and for a share of the
// others only.

import { settings } from './config.js'

var logger = new logging.JSONLogger('access').toStdout()

// Writes a line with the fields that the function returns, which is called only if lines are
// written. Those that are not given are null. The reason is the one under which telemetry.js has
// counted a refusal.
export function log(describe) {
  var own = settings()
  if (!own?.accessLog) return
  var fields = describe()
  if (own.logged !== undefined && !isError(fields) && Math.random() >= own.logged) return
  logger.log({
    authority: fields.authority || null,
    bytes_received: fields.bytes_received ?? null,
    bytes_sent: fields.bytes_sent ?? null,
    connection_close_details: fields.connection_close_details || null,
    downstream_failure: fields.downstream_failure || null,
    downstream_local: fields.downstream_local || null,
    downstream_peer: fields.downstream_peer || null,
    downstream_remote: fields.downstream_remote || null,
    duration: fields.duration ?? null,
    method: fields.method || null,
    path: fields.path || null,
    protocol: fields.protocol || null,
    reason: fields.reason || null,
    request_id: fields.request_id || null,
    requested_server_name: fields.requested_server_name || null,
    response_code: fields.response_code ?? null,
    response_code_details: fields.response_code_details || null,
    response_flags: fields.response_flags || null,
    start_time: fields.start_time || null,
    time_to_first_byte: fields.time_to_first_byte ?? null,
    trace_id: fields.trace_id || null,
    upstream_cluster: fields.upstream_cluster || null,
    upstream_failure: fields.upstream_failure || null,
    upstream_host: fields.upstream_host || null,
    upstream_peer: fields.upstream_peer || null,
    upstream_service_time: fields.upstream_service_time ?? null,
    user_agent: fields.user_agent || null,
    x_forwarded_for: fields.x_forwarded_for || null,
  })
}

// isError returns whether a request was refused, has failed on the server's side or has no
// answer, or a connection was refused, has failed or was silent.
function isError(fields) {
  if (fields.reason || fields.silent || fields.response_code >= 500) return true
  return fields.response_flags !== undefined && fields.response_flags !== '' && fields.response_flags !== '-'
}

// Returns a time in milliseconds since 1970 as text in the format of RFC 3339.
export function timestamp(milliseconds) {
  return new Date(milliseconds).toISOString()
}
