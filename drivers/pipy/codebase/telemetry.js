// The metrics that every proxy exports. Go's package telemetry has their names, labels,
// reasons and buckets, and a test compares them.

import { settings } from './config.js'
import { HISTOGRAM_SECONDS, describe, series, observe } from './metrics.js'

// Beyond so many other ends, requests are counted without them.
var MOST = 2000

describe({
  outrigger_requests_total: 'HTTP requests, including refused ones.',
  outrigger_request_duration_seconds: 'Time from the start of an HTTP request to the end of its answer, of those that were answered.',
  outrigger_request_bytes_total: 'Bytes of HTTP requests.',
  outrigger_response_bytes_total: 'Bytes of HTTP answers.',
  outrigger_retries_total: 'Repetitions of HTTP requests by the client\'s sidecar.',
  outrigger_tcp_connections_total: 'TCP connections that were forwarded.',
  outrigger_tcp_received_bytes_total: 'Bytes that clients have sent in TCP connections.',
  outrigger_tcp_sent_bytes_total: 'Bytes that servers have sent in TCP connections.',
  outrigger_denied_total: 'Requests and connections that the sidecar itself has refused, by reason.',
  outrigger_audit_denied_total: 'Requests and connections that pass the access rules of permissive mode and would not pass the audited ones, by reason.',
})

// What details of a refusal and flags mean. Others are no refusals.
var reasons = {
  'rbac_access_denied': 'access',
  'plaintext': 'plaintext',
  'other TLS': 'plaintext',
  'no ClientHello': 'plaintext',
  'too many connections': 'rate_limit',
  'local_rate_limited': 'rate_limit',
  'ext_authz_denied': 'authorization',
  'ext_authz_error': 'authorization',
  'egress_denied': 'egress',
  'invalid_request': 'invalid_request',
  'not_http': 'not_http',
  'route_not_found': 'no_route',
  'no_healthy_upstream': 'no_endpoint',
  'UH': 'no_endpoint',
  'UF': 'no_endpoint',
}

// reasonOf returns the reason of a refusal, or ''.
function reasonOf(details, flags) {
  return reasons[details] || reasons[flags] || ''
}

// edges are the other ends with the series of each. Looking labels up for each request would
// cost more than counting.
var edges = new Map

function edgeOf(reporter, protocol, peer, service) {
  var key = `${reporter} ${protocol} ${peer} ${service}`
  var edge = edges.get(key)
  if (edge) return edge
  if (edges.size >= MOST && (peer || service)) return edgeOf(reporter, protocol, '', '')
  edge = { labels: labelsOf(reporter, protocol, peer, service), outcomes: {}, sums: null }
  edges.set(key, edge)
  return edge
}

function labelsOf(reporter, protocol, peer, service) {
  var own = settings()
  var source = reporter === 'source'
  var identity = peer.split('/')
  var namespace = identity[4] || '', account = identity[6] || ''
  var slash = service.indexOf('/')
  var port = service.indexOf(':')
  if (slash > 0) namespace = service.substring(0, slash)
  return {
    reporter,
    class: os.env.OUTRIGGER_CLASS || 'pipy',
    source_workload: source ? os.env.OUTRIGGER_WORKLOAD || '' : '',
    source_namespace: source ? own.namespace : namespace,
    source_service_account: source ? own.serviceAccount : account,
    destination_workload: source ? '' : os.env.OUTRIGGER_WORKLOAD || '',
    destination_namespace: source ? namespace : own.namespace,
    destination_service_account: source ? account : own.serviceAccount,
    destination_service: slash > 0 ? service.substring(slash + 1, port > slash ? port : service.length) : '',
    protocol,
  }
}

// outcome returns a counter of an edge with more labels.
function outcome(edge, name, key, more) {
  return edge.outcomes[key] || (edge.outcomes[key] = series(name, 'counter', { ...edge.labels, ...more }))
}

function sumsOf(edge) {
  return edge.sums || (edge.sums = {
    duration: series('outrigger_request_duration_seconds', HISTOGRAM_SECONDS, edge.labels),
    received: series('outrigger_request_bytes_total', 'counter', edge.labels),
    sent: series('outrigger_response_bytes_total', 'counter', edge.labels),
    retries: series('outrigger_retries_total', 'counter', edge.labels),
  })
}

function tcpSumsOf(edge) {
  return edge.sums || (edge.sums = {
    received: series('outrigger_tcp_received_bytes_total', 'counter', edge.labels),
    sent: series('outrigger_tcp_sent_bytes_total', 'counter', edge.labels),
  })
}

function deny(edge, reason) {
  outcome(edge, 'outrigger_denied_total', `denied ${reason}`, { reason }).value++
}

// auditDeny counts what audited policies would refuse. They name identities, and a caller
// without TLS has none.
function auditDeny(edge, tls) {
  var reason = tls === 'none' ? 'plaintext' : 'access'
  outcome(edge, 'outrigger_audit_denied_total', `audit ${reason}`, { reason }).value++
}

// Returns the status of a gRPC call in trailers, or '' if it is none that gRPC has.
export function grpcStatus(trailers) {
  var status = trailers ? trailers['grpc-status'] : undefined
  return status !== undefined && Number.parseInt(status) >= 0 && Number.parseInt(status) <= 16 ? `${Number.parseInt(status)}` : ''
}

// Counts a request, and returns the reason if it was refused, or ''. The peer is the other
// end's verified SPIFFE ID or '', tls is "mutual", "tls" or "none", and the service is the
// name of the backend that was called.
export function countRequest(r) {
  var type = r.head.headers['content-type']
  var grpc = type !== undefined && `${type}`.startsWith('application/grpc')
  var edge = edgeOf(r.reporter, grpc ? 'grpc' : 'http', r.peer, r.service)
  var code = r.status >= 100 && r.status <= 999 ? `${r.status}` : '0'
  var status = grpc ? r.grpcStatus : ''
  outcome(
    edge, 'outrigger_requests_total', `${code} ${status} ${r.tls}`, { response_code: code, grpc_status: status, tls: r.tls }
  ).value++
  var sums = sumsOf(edge)
  if (code !== '0') observe(sums.duration, HISTOGRAM_SECONDS, r.milliseconds / 1000)
  sums.received.value += r.received
  sums.sent.value += r.sent
  sums.retries.value += r.retries
  var reason = reasonOf(r.details, r.flags)
  if (reason) deny(edge, reason)
  if (r.audited) auditDeny(edge, r.tls)
  return reason
}

// Counts a TCP connection once it is forwarded, with the bytes so far, and returns the counters
// for those that follow.
export function countConnection(c) {
  var edge = edgeOf(c.reporter, 'tcp', c.peer, c.service)
  outcome(edge, 'outrigger_tcp_connections_total', c.tls, { tls: c.tls }).value++
  var sums = tcpSumsOf(edge)
  sums.received.value += c.received
  sums.sent.value += c.sent
  if (c.audited) auditDeny(edge, c.tls)
  return sums
}

// Counts a connection that was not forwarded: as refused if the details or flags say so, and
// what an audit says. It returns the reason or ''.
export function countRefusal(c) {
  var reason = c.failure ? 'certificate' : reasonOf(c.details, c.flags)
  if (!reason && !c.audited) return ''
  var edge = edgeOf(c.reporter, 'tcp', c.peer, c.service)
  if (reason) deny(edge, reason)
  if (c.audited) auditDeny(edge, c.tls)
  return reason
}
