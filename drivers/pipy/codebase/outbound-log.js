// Metrics, access log and tracing of the application's requests and connections.

import { settings } from './config.js'
import { count, countDownstream, countRequest } from './metrics.js'
import { log, timestamp } from './accesslog.js'
import { finishSpan } from './tracing.js'
import { spiffe } from './spiffe.js'

// Envoy's response flags by failure.
var flags = { 'no endpoint': 'UH', 'overflow': 'UO', 'unreachable': 'UF', 'reset': 'UC', 'stale': 'UC', 'cut off': 'UC', 'timeout': 'UT' }

// requestEnded is called when an exchange is over.
export function requestEnded(connection, exchange) {
  var head = exchange.head
  if (!head) return
  var request = exchange.request
  var cluster = request && request.backend ? request.backend.name : ''
  var endpoint = request ? request.endpoint : null
  var duration = Date.now() - exchange.begun
  var flag = (request && flags[request.failure]) || exchange.flags
  countDownstream('outbound', exchange.status)
  if (cluster) countRequest(cluster, exchange.status, duration)
  if (request && request.retries > 0) count('envoy_cluster_upstream_rq_retry', { envoy_cluster_name: cluster }, request.retries)
  var peer = endpoint && endpoint.serverName ? spiffe(endpoint.serverName, settings().trustDomain) : ''
  finishSpan(exchange.span, exchange.status, { peer, upstream_cluster: cluster, response_flags: flag })
  log({
    authority: head.headers.host,
    bytes_received: exchange.sent,
    bytes_sent: exchange.received,
    downstream_remote: connection.remote,
    duration,
    method: head.method,
    path: exchange.path,
    protocol: head.protocol || 'HTTP/2',
    request_id: head.headers['x-request-id'],
    response_code: exchange.status,
    response_code_details: exchange.details || (request && request.failure ? request.failure : exchange.status ? 'via_upstream' : 'downstream_remote_disconnect'),
    response_flags: exchange.status ? flag : 'DC',
    start_time: timestamp(exchange.begun),
    time_to_first_byte: exchange.firstByte ? exchange.firstByte - exchange.begun : undefined,
    trace_id: exchange.span ? exchange.span.traceId : '',
    upstream_cluster: cluster,
    upstream_failure: request && request.failure ? request.transportFailure : '',
    upstream_host: endpoint ? endpoint.address : '',
    upstream_peer: peer,
    upstream_service_time: request && !request.failure && exchange.firstByte ? exchange.firstByte - exchange.begun : undefined,
    user_agent: head.headers['user-agent'],
    x_forwarded_for: head.headers['x-forwarded-for'],
  })
}

// connectionEnded is called when a connection is over. Connections with requests are
// logged by request.
export function connectionEnded(connection) {
  if (connection.kind === 'http') return
  var t = connection.tunnel
  var endpoint = t ? t.endpoint : null
  if (t && t.backend) {
    var labels = { envoy_cluster_name: t.backend.name }
    count('envoy_cluster_upstream_cx_total', labels)
    count('envoy_cluster_upstream_cx_rx_bytes_total', labels, t.received)
    count('envoy_cluster_upstream_cx_tx_bytes_total', labels, t.sent)
    if (t.failure) count('envoy_cluster_upstream_cx_connect_fail', labels)
  }
  log({
    bytes_received: t ? t.sent : 0,
    bytes_sent: t ? t.received : 0,
    downstream_remote: connection.remote,
    duration: Date.now() - connection.begun,
    requested_server_name: connection.serverName,
    response_flags: t ? flags[t.failure] || (t.failure ? 'UF' : '-') : 'UH',
    start_time: timestamp(connection.begun),
    upstream_cluster: t && t.backend ? t.backend.name : '',
    upstream_failure: t ? t.failure : '',
    upstream_host: endpoint ? endpoint.address : '',
    upstream_peer: endpoint && endpoint.serverName && settings() ? spiffe(endpoint.serverName, settings().trustDomain) : '',
  })
}
