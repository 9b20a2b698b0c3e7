// The access log: one line of JSON on standard output for each request and connection,
// with Open Service Mesh's field names.

import { settings } from './config.js'

var logger = new logging.JSONLogger('access').toStdout()

var names = [
  'authority', 'bytes_received', 'bytes_sent', 'connection_close_details', 'downstream_failure', 'downstream_peer',
  'downstream_remote', 'duration', 'method', 'path', 'protocol', 'request_id', 'requested_server_name', 'response_code',
  'response_code_details', 'response_flags', 'start_time', 'time_to_first_byte', 'trace_id', 'upstream_cluster',
  'upstream_failure', 'upstream_host', 'upstream_peer', 'upstream_service_time', 'user_agent', 'x_forwarded_for',
]

// Writes a line with the fields. Those that are not given are null.
export function log(fields) {
  if (!settings()?.accessLog) return
  var line = {}
  names.forEach(
    function (name) {
      var value = fields[name]
      line[name] = value === undefined || value === '' ? null : value
    }
  )
  logger.log(line)
}

// Returns a time in milliseconds since 1970 as text in the format of RFC 3339.
export function timestamp(milliseconds) {
  return new Date(milliseconds).toISOString()
}
