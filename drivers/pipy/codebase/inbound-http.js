// Requests to the pod's application: authorization, rate limits, and the headers that
// identify the client to the application.

import { settings, inbound } from './config.js'
import { clean, dropSpellings, requestOf } from './request.js'
import { decide, mode, portAt, wouldRefuse } from './authorization.js'
import { exceeded } from './ratelimit.js'
import { ask } from './external.js'
import { changeHeaders } from './filter.js'
import { newCall, exchange, hangUp } from './application.js'
import { isGRPC, reply } from './reply.js'
import { openTunnel } from './framing.js'
import { answering, describe } from './requests.js'
import { follow } from './shape.js'
import { startSpan, finishSpan } from './tracing.js'
import { count, series, countDownstream, countRequest as countUpstream } from './metrics.js'
import { countRequest, grpcStatus } from './telemetry.js'
import { log, timestamp } from './accesslog.js'
import { spiffe } from './spiffe.js'
import { endConnection } from './leave.js'

var $connection
var $request

// requests returns a pipeline that answers all requests of a connection, with which it is
// started.
export function requests() {
  return answering({ pipeline: one, exchange: newRequest, abort: cutOff, left })
}

// one returns the pipeline of one request.
function one() {
  return pipeline($=>$
    .onStart(
      function (request) {
        $request = request
        $connection = request.connection
      }
    )
    .handleData(data => void ($request.received += data.size))
    .pipe(
      function (evt) {
        if (evt instanceof MessageStart) return take($connection, $request, evt.head)
        if (evt instanceof StreamEnd) return dropped
      },
      () => [$request.call]
    )
    .handleMessageStart(evt => began($connection, $request, evt.head))
    .handleData(data => void ($request.sent += data.size))
    .handleMessageEnd(end => finished($connection, $request, end))
    .handleStreamEnd(() => void (isCutOff($request) && ($connection.broken = true)))
    .onEnd(() => ended($connection, $request))
  )
}

// left ends the calls for a client that has gone. Peers do not half-close a connection; other
// clients may, and get the answers to what they have sent.
function left(connection) {
  if (connection.peer) connection.calls.forEach(call => hangUp(call))
}

// cutOff ends the call of a request whose stream was reset.
function cutOff(request) {
  if (request.call) hangUp(request.call)
  return undefined
}

var dropped = pipeline($=>$)

// checked forwards or refuses a request when the external authorization is decided.
var checked = pipeline($=>$
  .wait(() => $request.verdict)
  .pipe(() => $request.call ? exchange : refusal, () => [$request.call])
)

// continued asks the client for the body before it forwards the request to an application that
// speaks HTTP/2.
var continued = pipeline($=>$
  .replaceMessageStart(start => [new MessageStart({ status: 100 }), new MessageEnd, start])
  .demux().to($=>$
    .pipe(
      function (evt) {
        if (evt instanceof MessageStart) return evt.head.status === 100 ? passed : $request.target
      },
      () => [$request.call]
    )
  )
)

var passed = pipeline($=>$)

// refusal sends the proxy's own answer as soon as the request begins.
var refusal = pipeline($=>$
  .replaceData(() => undefined)
  .replaceMessageEnd(() => undefined)
  .replaceMessageStart(() => $request.answer)
)

function newRequest(connection) {
  return { connection, described: null, end: { trailers: null }, begun: Date.now(), head: null, path: '', call: null, target: null, verdict: null, changes: null, answer: null, status: 0, firstByte: undefined, details: '', flags: '-', audited: false, tunnel: false, closes: false, received: 0, sent: 0, grpcStatus: '', span: null }
}

// take returns the pipeline for a request with the head.
function take(connection, request, head) {
  var described = describe(connection, head)
  request.head = head
  request.path = head.path
  request.described = described
  if (described && described.refused) {
    request.tunnel = true
    return refuse(request, described.refused.status, described.refused.text, described.refused.details)
  }
  var target = answerer(connection, request, head)
  if (!expects(request) || target === refusal || !isHTTP2(connection)) return target
  request.target = target
  return continued
}

// answerer returns the pipeline that answers a request.
function answerer(connection, request, head) {
  request.tunnel = head.method === 'CONNECT' || Boolean(head.headers.upgrade)
  if (!inbound() || !settings()) return refuse(request, 503, 'no configuration', 'no_configuration')
  if (!clean(head, true)) {
    request.tunnel = true
    return refuse(request, 400, 'bad request', 'invalid_request')
  }
  var port = portAt(connection.number)
  dropSpellings(head, port.headers || [])
  var asked = requestOf(head)
  var arrival = { security: connection.security, serverName: connection.serverName, source: connection.source, peer: connection.peer, request: asked }
  if (head.method === 'CONNECT' || decide(mode(), port, arrival) === null) {
    count('envoy_http_rbac_denied', prefixOf(connection))
    return refuse(request, 403, 'RBAC: access denied', 'rbac_access_denied')
  }
  countAllowed(connection)
  request.audited = wouldRefuse(mode(), port, arrival)
  var limit = exceeded(connection.number, port, asked)
  if (limit) {
    count('envoy_rate_limit_http_local_rate_limit_rate_limited', {})
    request.flags = 'RL'
    return refuse(request, limit.status, 'local_rate_limited', 'local_rate_limited', limit.headers)
  }
  identifyCaller(connection, head)
  request.span = startSpan('SERVER', head)
  var http2 = isHTTP2(connection) || !head.protocol
  if (!settings().authorization) return forward(connection, request, http2)
  request.verdict = ask(connection, head).then(verdict => judge(connection, request, http2, verdict))
  return checked
}

// isHTTP2 reports whether the application speaks HTTP/2 at the port.
function isHTTP2(connection) {
  return portAt(connection.number).http2
}

function expects(request) {
  return Boolean(request.described && request.described.expects)
}

function forward(connection, request, http2) {
  request.call = newCall(connection.address, connection.number, request.head, http2, request.described)
  // A client of HTTP/1.1 gets interim answers, too, and the application decides whether it may send
  // its body.
  if (request.described && !connection.old) request.call.answers = connection.shape
  if (expects(request) && !http2) request.head.headers.expect = '100-continue'
  connection.calls.add(request.call)
  return exchange
}

// judge acts on the verdict of the external authorization, which may be null.
function judge(connection, request, http2, verdict) {
  request.verdict = null
  var authorization = settings().authorization
  var result = !verdict ? 'error' : verdict.allowed ? 'ok' : 'denied'
  if (authorization) count(authorization.metrics + result, prefixOf(connection))
  if (result === 'ok') {
    changeHeaders(request.head.headers, verdict.request)
    request.changes = verdict.response
    return forward(connection, request, http2)
  }
  if (!verdict && authorization && authorization.allowOnFailure) {
    count(`${authorization.metrics}failure_mode_allowed`, prefixOf(connection))
    return forward(connection, request, http2)
  }
  request.flags = 'UAEX'
  if (verdict) return refuse(request, verdict.status, verdict.body, 'ext_authz_denied', verdict.headers)
  return refuse(request, 403, 'the external authorization service has not answered', 'ext_authz_error')
}

// isCutOff reports whether the client would take a truncated answer for a complete one.
// Pipy can't reset a stream of HTTP/2, so the connection must end.
function isCutOff(request) {
  var call = request.call
  if (!call || !call.broken) return false
  var answer = call.answerHead
  return Boolean(request.head.protocol) || answer.headers['content-length'] === undefined
}

function refuse(request, status, text, details, headers) {
  request.details = details
  request.answer = reply(request.head, status, text, headers || {})
  return refusal
}

// identifyCaller adds the caller's identity, from its verified certificate, to the headers.
function identifyCaller(connection, head) {
  var headers = head.headers
  if (connection.peer) {
    var own = spiffe(settings().serverName, settings().trustDomain)
    headers['x-forwarded-client-cert'] = `By=${own};URI=${connection.peer}`
  }
  if (settings().forwardedFor) {
    var before = headers['x-forwarded-for']
    if (before instanceof Array) before = before.join(', ')
    headers['x-forwarded-for'] = before ? `${before}, ${connection.source}` : connection.source
  }
  if (!headers['x-request-id']) headers['x-request-id'] = algo.uuid()
  // The application gets the complete request in any case.
  delete headers.expect
  if (headers.upgrade === 'websocket') {
    headers.connection = 'upgrade'
  } else {
    delete headers.upgrade
    delete headers.connection
  }
}

// allowed are the counters of authorized requests, by port.
var allowed = {}

function countAllowed(connection) {
  var number = connection.number
  var counter = allowed[number] || (allowed[number] = series('envoy_http_rbac_allowed', 'counter', prefixOf(connection)))
  counter.value++
}

function prefixOf(connection) {
  return { envoy_http_conn_manager_prefix: `inbound/${connection.number}` }
}

function began(connection, request, head) {
  if (head.status === 100) return
  if (head.status === 101) openTunnel(connection.reader, false)
  // Of the proxy's own answers only those to callers of gRPC have trailers.
  if (request.head.protocol && (request.call || isGRPC(head))) follow(connection.shape, head, request.end)
  request.status = head.status
  request.firstByte = Date.now()
  changeHeaders(head.headers, request.changes)
  endConnection(request.head, head)
  // After a failed upgrade or CONNECT Pipy would not notice that the client has gone. A client
  // of HTTP/1.0 reads an answer of unknown length to the connection's end.
  var endless = request.head.protocol === 'HTTP/1.0' && head.headers['content-length'] === undefined
  if ((request.tunnel || endless) && head.status !== 101) {
    request.closes = true
    head.headers.connection = 'close'
  }
}

function finished(connection, request, end) {
  if (!request.status) return
  connection.last = request.closes
  request.end.trailers = (end.tail && end.tail.headers) || null
  request.grpcStatus = grpcStatus(end.tail && end.tail.headers)
}

// ended counts, logs and traces a request.
function ended(connection, request) {
  var head = request.head
  if (!head) return
  var call = request.call
  if (call) connection.calls.delete(call)
  var duration = Date.now() - request.begun
  countDownstream(`inbound/${connection.number}`, request.status)
  if (call) countUpstream('inbound', request.status, duration)
  if (call && call.failure) {
    request.flags = call.connected ? 'UC' : 'UF'
    if (!call.answered) request.details = 'upstream_reset_before_response_started'
  }
  var reason = countRequest({
    reporter: 'destination', head, peer: connection.peer, service: '', tls: !connection.secured ? 'none' : connection.peer ? 'mutual' : 'tls',
    status: request.status, grpcStatus: request.grpcStatus, milliseconds: duration, received: request.received, sent: request.sent, retries: 0,
    details: request.details, flags: request.flags, audited: request.audited,
  })
  finishSpan(request.span, request.status, { peer: connection.peer, upstream_cluster: 'inbound', response_flags: request.flags })
  log(() => ({
    authority: head.headers.host,
    bytes_received: request.received,
    bytes_sent: request.sent,
    downstream_peer: connection.peer,
    downstream_remote: connection.remote,
    duration,
    method: head.method,
    path: request.path,
    // What is not HTTP has no method.
    protocol: head.method ? head.protocol || 'HTTP/2' : '',
    reason,
    requested_server_name: connection.serverName,
    request_id: head.headers['x-request-id'],
    response_code: request.status,
    response_code_details: request.details || (request.status ? 'via_upstream' : 'downstream_remote_disconnect'),
    response_flags: request.status ? request.flags : 'DC',
    start_time: timestamp(request.begun),
    time_to_first_byte: request.firstByte === undefined ? undefined : request.firstByte - request.begun,
    trace_id: request.span ? request.span.traceId : '',
    upstream_cluster: call ? 'inbound' : '',
    upstream_failure: call ? call.failure : '',
    upstream_host: call ? call.host : '',
    upstream_service_time: request.firstByte === undefined || !call ? undefined : request.firstByte - request.begun,
    user_agent: head.headers['user-agent'],
    x_forwarded_for: head.headers['x-forwarded-for'],
  }))
}
