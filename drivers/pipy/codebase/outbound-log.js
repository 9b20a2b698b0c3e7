// Metrics, access log and tracing of the application's requests and connections.

import { settings, backend, destinationAt } from './config.js'
import { count, countDownstream, countRequest as countUpstream } from './metrics.js'
import { countRequest, countConnection, countRefusal } from './telemetry.js'
import { log, timestamp } from './accesslog.js'
import { finishSpan } from './tracing.js'
import { spiffe } from './spiffe.js'
import { hostPort } from './address.js'

// How many milliseconds a client of HTTP usually takes at most to send something.
var SILENCE = 2000

// Envoy's response flags by failure.
var flags = { 'no endpoint': 'UH', 'overflow': 'UO', 'unreachable': 'UF', 'reset': 'UC', 'stale': 'UC', 'cut off': 'UC', 'timeout': 'UT' }

// requestEnded is called when an exchange is over.
export function requestEnded(connection, exchange) {
  var head = exchange.head
  if (!head) return
  var request = exchange.request
  var cluster = request && request.backend ? request.backend.name : exchange.service
  var endpoint = request ? request.endpoint : null
  var duration = Date.now() - exchange.begun
  var flag = (request && flags[request.failure]) || exchange.flags
  countDownstream('outbound', exchange.status)
  if (request && cluster) countUpstream(cluster, exchange.status, duration)
  if (request && request.retries > 0) count('envoy_cluster_upstream_rq_retry', { envoy_cluster_name: cluster }, request.retries)
  var peer = endpoint && endpoint.serverName ? spiffe(endpoint.serverName, settings().trustDomain) : ''
  var reached = peer && !request.failure
  var reason = countRequest({
    reporter: 'source', head, peer: reached ? peer : '', service: exchange.service || backend(cluster) ? cluster : '', tls: endpoint && endpoint.serverName && !request.failure ? 'mutual' : 'none',
    status: exchange.status, grpcStatus: exchange.grpcStatus, milliseconds: duration, received: exchange.sent, sent: exchange.received,
    retries: request ? request.retries : 0, details: exchange.details, flags: flag,
  })
  finishSpan(exchange.span, exchange.status, { peer, upstream_cluster: cluster, response_flags: flag })
  log(() => ({
    authority: head.headers.host,
    bytes_received: exchange.sent,
    bytes_sent: exchange.received,
    downstream_local: hostPort(connection.to.address, connection.to.port),
    downstream_remote: connection.remote,
    duration,
    method: head.method,
    path: exchange.path,
    // What is not HTTP has no method.
    protocol: head.method ? head.protocol || 'HTTP/2' : '',
    reason,
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
  }))
}

// connectionEnded is called when a connection is over. Connections with requests are
// logged by request.
export function connectionEnded(connection) {
  if (connection.kind === 'http') return silent(connection)
  var t = connection.tunnel
  var endpoint = t ? t.endpoint : null
  if (t && t.backend) {
    var labels = { envoy_cluster_name: t.backend.name }
    count('envoy_cluster_upstream_cx_total', labels)
    count('envoy_cluster_upstream_cx_rx_bytes_total', labels, t.received)
    count('envoy_cluster_upstream_cx_tx_bytes_total', labels, t.sent)
    if (t.failure) count('envoy_cluster_upstream_cx_connect_fail', labels)
  }
  var reason = settings() ? refusalOf(t) : ''
  log(() => ({
    bytes_received: t ? t.sent : 0,
    bytes_sent: t ? t.received : 0,
    downstream_local: connection.to ? hostPort(connection.to.address, connection.to.port) : '',
    downstream_remote: connection.remote,
    duration: Date.now() - connection.begun,
    reason,
    requested_server_name: connection.serverName,
    response_flags: t ? flags[t.failure] || (t.failure ? 'UF' : '-') : 'UH',
    start_time: timestamp(connection.begun),
    upstream_cluster: t && t.backend ? t.backend.name : '',
    upstream_failure: t ? t.failure : '',
    upstream_host: endpoint ? endpoint.address : '',
    upstream_peer: endpoint && endpoint.serverName && settings() ? spiffe(endpoint.serverName, settings().trustDomain) : '',
  }))
}

// silent writes a line about a connection to an HTTP port whose client has waited and then left without a
// word, as clients do if the server speaks first in their protocol. It may also be one that its
// client has opened in advance, so nothing is refused.
function silent(connection) {
  if (connection.heard || connection.edge || Date.now() - connection.begun < SILENCE) return
  log(() => ({
    bytes_received: 0,
    bytes_sent: 0,
    connection_close_details: 'the client has waited silently; if its server speaks first, the port needs the appProtocol tcp-server-first',
    downstream_local: hostPort(connection.to.address, connection.to.port),
    downstream_remote: connection.remote,
    duration: Date.now() - connection.begun,
    response_flags: '-',
    silent: true,
    start_time: timestamp(connection.begun),
    upstream_cluster: destinationAt(connection.to.address, connection.to.port)?.service,
  }))
}

// connectionOpened is called when a connection has reached its endpoint, and counts it. It returns
// the counters of the bytes that follow.
export function connectionOpened(t) {
  var name = t.endpoint.serverName
  return countConnection({
    reporter: 'source', peer: name ? spiffe(name, settings().trustDomain) : '', service: serviceOf(t), tls: name ? 'mutual' : 'none',
    received: t.sent, sent: t.received,
  })
}

function serviceOf(t) {
  return t && t.backend && backend(t.backend.name) ? t.backend.name : ''
}

// refusalOf counts a connection that is over and was not forwarded. It returns the reason if it
// was refused, or ''.
function refusalOf(t) {
  if (t && t.session && t.session.opened) return ''
  var flag = t ? flags[t.failure] || 'UF' : ''
  return countRefusal({ reporter: 'source', peer: '', service: serviceOf(t), details: t && t.backend ? '' : 'egress_denied', failure: '', flags: flag })
}
