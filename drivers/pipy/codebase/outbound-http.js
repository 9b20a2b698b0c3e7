// Requests of the application: routing, and the connection's request pipeline.

import { destinationAt } from './config.js'
import { clean, requestOf } from './request.js'
import { matches } from './match.js'
import { hashOf, cookieFor } from './affinity.js'
import { keptBy, keep, addCookie } from './persistence.js'
import { requestBackend } from './egress.js'
import { newRequest, abort, send } from './http-client.js'
import { reply } from './reply.js'
import { openTunnel } from './framing.js'
import { answering, describe } from './requests.js'
import { follow } from './shape.js'
import { pick } from './backend.js'
import { changeHeaders, rewrite, locationOf, isPreflight, preflightHeaders, shareWith } from './filter.js'
import { startSpan } from './tracing.js'
import { requestEnded } from './outbound-log.js'
import { grpcStatus } from './telemetry.js'
import { endConnection } from './leave.js'
import { admit, isMisdirected, isPlainHost, routesFor } from './edge.js'

var $connection
var $exchange
var $copy

// takeRequests returns a pipeline that answers all requests of a connection, with which it is
// started.
export function takeRequests() {
  return answering({ pipeline: one, exchange: newExchange, abort: cutOff, left })
}

// one returns the pipeline of one request.
function one() {
  return pipeline($=>$
    .onStart(
      function (exchange) {
        $exchange = exchange
        $connection = exchange.connection
      }
    )
    .handleData(data => void ($exchange.sent += data.size))
    .handleMessageEnd(() => mirror($exchange))
    .pipe(
      function (evt) {
        if (evt instanceof MessageStart) return take($connection, $exchange, evt.head)
        if (evt instanceof StreamEnd) return dropped
      },
      () => [$exchange.request]
    )
    .handleMessageStart(start => began($connection, $exchange, start.head))
    .handleData(data => void ($exchange.received += data.size))
    .handleMessageEnd(end => finished($connection, $exchange, end))
    .onEnd(() => ended($connection, $exchange))
  )
}

// cutOff aborts a request whose stream was reset.
function cutOff(exchange) {
  if (exchange.request) abort(exchange.request)
  return undefined
}

var dropped = pipeline($=>$)

// continued asks the client for the body before it forwards the request to a server that speaks
// HTTP/2.
var continued = pipeline($=>$
  .replaceMessageStart(start => [new MessageStart({ status: 100 }), new MessageEnd, start])
  .demux().to($=>$
    .pipe(
      function (evt) {
        if (evt instanceof MessageStart) return evt.head.status === 100 ? dropped : send
      },
      () => [$exchange.request]
    )
  )
)

// take returns the pipeline for a request with the head.
function take(connection, exchange, head) {
  var described = describe(connection, head)
  if (described && described.refused) {
    exchange.head = head
    exchange.path = head.path
    var destination = destinationAt(connection.to.address, connection.to.port)
    exchange.service = destination ? destination.service : ''
    refuse(exchange, described.refused.status, described.refused.text, described.refused.details)
    return refusal
  }
  if (described) exchange.upgrades = Boolean(head.headers.upgrade)
  if (!route(connection, exchange, head, described)) return refusal
  return described && described.expects && exchange.request.options.http2 ? continued : send
}

// refusal sends the proxy's own answer as soon as the request begins.
var refusal = pipeline($=>$
  .replaceData(() => undefined)
  .replaceMessageEnd(() => undefined)
  .replaceMessageStart(() => $exchange.answer)
)

// left aborts the requests of a client that has gone.
function left(connection) {
  connection.requests.forEach(request => abort(request))
}

function ended(connection, exchange) {
  if (exchange.request) connection.requests.delete(exchange.request)
  requestEnded(connection, exchange)
}

function newExchange(connection) {
  return {
    connection, end: { trailers: null }, begun: Date.now(), service: '', head: null, path: '', request: null, answer: null, cookie: null, span: null, response: null, cors: null, origin: '', mirrors: null, session: null,
    upgrades: false, closes: false, status: 0, firstByte: 0, grpcStatus: '', sent: 0, received: 0, details: '', flags: '-',
  }
}

function refuse(exchange, status, text, details, flags) {
  exchange.details = details
  exchange.flags = flags || '-'
  exchange.answer = reply(exchange.head, status, text, {})
  return false
}

// route decides where a request goes. It returns false if the proxy answers it itself.
function route(connection, exchange, head, described) {
  exchange.head = head
  exchange.path = head.path
  if (connection.edge && !admit(connection, head)) return refuse(exchange, 400, 'bad request', 'invalid_request')
  if (!clean(head, false) || head.method === 'CONNECT') return refuse(exchange, 400, 'bad request', 'invalid_request')
  if (connection.edge && !isPlainHost(head.headers.host)) return refuse(exchange, 400, 'bad request', 'invalid_request')
  var asked = requestOf(head)
  // Look up the destination for each request: it may have changed since the connection was
  // made.
  var destination = destinationAt(connection.to.address, connection.to.port)
  if (!destination && connection.edge) return refuse(exchange, 404, '', 'route_not_found', 'NR')
  var options = destination ? within(connection, exchange, destination, asked) : outside(connection, exchange, asked)
  if (!options) return false
  options.http2 = options.http2 || !head.protocol
  options.connection = connection
  options.described = described
  if (head.headers.upgrade === 'websocket') {
    head.headers.connection = 'upgrade'
    options.http2 = false
  } else {
    delete head.headers.upgrade
    delete head.headers.connection
  }
  delete head.headers.expect
  if (described && described.expects && !options.http2) head.headers.expect = '100-continue'
  exchange.span = startSpan('CLIENT', head)
  exchange.request = newRequest(head, options)
  connection.requests.add(exchange.request)
  return true
}

// within finds the route of a request to a destination inside the mesh.
function within(connection, exchange, destination, asked) {
  if (destination.protocol !== 'http') return refuse(exchange, 503, 'the service no longer speaks HTTP', 'no_http', 'NR')
  if (connection.edge && isMisdirected(destination, connection, asked.host)) return refuse(exchange, 421, 'misdirected request', 'route_not_found', 'NR')
  var found = routesFor(destination, asked.host).find(r => matches(r.match, asked))
  if (!found) return refuse(exchange, 404, '', 'route_not_found', 'NR')
  var head = exchange.head
  var prefix = found.match.path?.prefix || ''
  if (found.cors) {
    exchange.cors = found.cors
    exchange.origin = matches({ headers: [found.cors.origin] }, asked) ? head.headers.origin : ''
    if (isPreflight(head)) return answer(exchange, 204, preflightHeaders(found.cors, exchange.origin, head.headers))
  }
  if (found.redirect) {
    var headers = { location: locationOf(head, found.redirect, prefix) }
    changeHeaders(headers, found.redirect.response)
    if (exchange.origin) shareWith(headers, exchange.cors, exchange.origin)
    return answer(exchange, found.redirect.status, headers)
  }
  if (!found.backends || found.backends.length === 0) return refuse(exchange, 503, 'no healthy upstream', 'no_healthy_upstream', 'UH')
  exchange.cookie = cookieFor(destination.hashOn, head, connection.peer)
  var options = {
    backends: found.backends,
    timeout: found.timeout,
    retry: found.retry,
    http2: destination.http2,
    hash: exchange.cookie ? exchange.cookie.value : hashOf(destination.hashOn, head, connection.peer),
    kept: found.session ? keptBy(found.session, head) : null,
  }
  exchange.session = found.session
  if (found.backends.some(isSpecial)) {
    var share = options.kept ? found.backends.find(b => b.backend === options.kept.backend.name) : pick(found.backends)
    if (!share.backend) return refuse(exchange, 500, '', 'backend_unresolved', 'NR')
    changeHeaders(head.headers, share.request)
    exchange.response = share.response
    options.backends = [{ backend: share.backend, weight: 1 }]
  }
  if (found.rewrite) rewrite(head, found.rewrite, prefix)
  exchange.mirrors = found.mirrors
  return options
}

// mirror sends copies of a request whose body is complete. There are none of a long body,
// or of a request to upgrade the protocol.
function mirror(exchange) {
  var request = exchange.request
  if (!exchange.mirrors || !request || !request.kept || request.upgrade) return
  exchange.mirrors.forEach(
    function (m) {
      if (Math.random() * m.denominator >= m.numerator) return
      var head = Object.assign({}, exchange.head, { headers: Object.assign({}, exchange.head.headers) })
      var options = { backends: [{ backend: m.backend, weight: 1 }], timeout: request.options.timeout, http2: request.options.http2, connection: {} }
      copies.spawn({ request: newRequest(head, options), body: new Data(request.body) })
    }
  )
}

var copies = pipeline($=>$
  .onStart(
    function (copy) {
      $copy = copy
      return new Message(copy.request.head, copy.body)
    }
  )
  .pipe(send, () => [$copy.request])
  .replaceData(() => undefined)
  .replaceMessageEnd(end => [end, new StreamEnd])
)

// isSpecial reports whether requests for a backend differ from those for others.
function isSpecial(share) {
  return !share.backend || !!share.request || !!share.response
}

function answer(exchange, status, headers) {
  exchange.details = 'direct_response'
  exchange.answer = new Message({ status, headers })
  return undefined
}

// outside finds the backend of a request to a destination outside the mesh.
function outside(connection, exchange, asked) {
  var found = requestBackend(connection.to, asked)
  if (!found) return refuse(exchange, 403, 'access denied', 'egress_denied')
  return { to: found.backend, timeout: found.timeout }
}

function began(connection, exchange, head) {
  if (head.status === 100) return
  if (head.status === 101) {
    openTunnel(connection.reader, false)
    head.headers.connection = 'upgrade'
  }
  if (exchange.head.protocol) follow(connection.shape, head, exchange.end)
  exchange.status = head.status
  exchange.firstByte = Date.now()
  endConnection(exchange.head, head)
  // What follows a refused upgrade is not read. A client of HTTP/1.0 reads an answer of unknown
  // length to the connection's end.
  var endless = exchange.head.protocol === 'HTTP/1.0' && head.headers['content-length'] === undefined
  if ((exchange.upgrades || endless) && head.status !== 101) {
    exchange.closes = true
    head.headers.connection = 'close'
  }
  if (!exchange.request) return
  changeHeaders(head.headers, exchange.response)
  if (exchange.origin) shareWith(head.headers, exchange.cors, exchange.origin)
  if (exchange.cookie) addCookie(head, exchange.cookie.header)
  if (exchange.session && !exchange.request.failure) keepAt(exchange, head)
}

function finished(connection, exchange, end) {
  if (!exchange.status) return
  connection.last = exchange.closes
  exchange.end.trailers = (end.tail && end.tail.headers) || null
  exchange.grpcStatus = grpcStatus(end.tail && end.tail.headers)
}

// keepAt gives the client a token for the endpoint that has answered, unless it has sent it.
function keepAt(exchange, head) {
  var request = exchange.request
  var kept = request.options.kept
  if (kept && kept.endpoint === request.endpoint && kept.backend === request.backend) return
  if (request.endpoint) keep(exchange.session, head, request.backend, request.endpoint)
}
