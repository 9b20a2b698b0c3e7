// The access log: one line of JSON on standard output for each request and connection,
// with Open Service Mesh's field names. There may be lines for errors and for a share of the
// others only.

import { settings } from './config.js'

var logger = new logging.JSONLogger('access').toStdout()

var names = [
  'authority', 'bytes_received', 'bytes_sent', 'connection_close_details', 'downstream_failure', 'downstream_peer',
  'downstream_remote', 'duration', 'method', 'path', 'protocol', 'reason', 'request_id', 'requested_server_name', 'response_code',
  'response_code_details', 'response_flags', 'start_time', 'time_to_first_byte', 'trace_id', 'upstream_cluster',
  'upstream_failure', 'upstream_host', 'upstream_peer', 'upstream_service_time', 'user_agent', 'x_forwarded_for',
]

// Writes a line with the fields. Those that are not given are null. The reason is the one
// under which telemetry.js has counted a refusal.
export function log(fields) {
  var own = settings()
  if (!own?.accessLog) return
  if (own.logged !== undefined && !isError(fields) && Math.random() >= own.logged) return
  var line = {}
  names.forEach(
    function (name) {
      var value = fields[name]
      line[name] = value === undefined || value === '' ? null : value
    }
  )
  logger.log(line)
}

// isError returns whether a request was refused, has failed on the server's side or has no
// answer, or a connection was refused or has failed.
function isError(fields) {
  if (fields.reason || fields.response_code >= 500) return true
  return fields.response_flags !== undefined && fields.response_flags !== '' && fields.response_flags !== '-'
}

// Returns a time in milliseconds since 1970 as text in the format of RFC 3339.
export function timestamp(milliseconds) {
  return new Date(milliseconds).toISOString()
}
