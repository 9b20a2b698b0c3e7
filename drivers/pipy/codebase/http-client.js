// HTTP requests to backends, with retries.
//
// Each try has a connection to itself until the answer is complete. HTTP/1.1 is forwarded
// as HTTP/1.1 and HTTP/2 as HTTP/2, which is what the server expects. PipyJS counts
// references: the references between a request and its tries are cleared when they are
// over, or they would never be freed.

import { backendOf, weighted, choose, acquire, withdraw, release, observe, refuses } from './backend.js'
import { close, carry, receive } from './session.js'
import { expect } from './framing.js'
import { watchStream } from './frames.js'
import { dropOwn } from './request.js'
import { hasBody } from './application.js'
import { PRIMER, begin as shape, follow, write } from './shape.js'
import { add, reserve } from './shared.js'
import { isRetriable, retryDelay } from './retry.js'
import { cutOff, isGRPC, reply, takeTrailers } from './reply.js'

// How many bytes of a request body are kept for retries.
var KEPT = 256 * 1024
// How many seconds a request may take to arrive that is forwarded when it is complete, and shares
// connections with others.
var SOON = 0.02
// After how many idle seconds connections are closed by default.
var IDLE = 300

var $request
var $try
var $exchanging
var $session

// newRequest returns a request with the head. Options are {backends: [{backend, weight}]}
// or {to: backend}, timeout and retry as in a route, hash, http2, kept, which is the {backend,
// endpoint} of the first try if it is given, and connection, whose "broken" is set if an answer that has begun can't be completed.
export function newRequest(head, options) {
  return {
    head, options, body: new Data, kept: true, complete: false, end: null, onComplete: null, onSoon: null,
    tries: 0, retries: 0, unseen: 0, tried: [], current: null, again: false, expired: false, ended: false, timer: null,
    // A request to upgrade the protocol is not retried.
    upgrade: !!head.headers.upgrade,
    // The answer: its status and origin, or why there is none.
    status: 0, failure: '', transportFailure: '', drawn: null, backend: null, endpoint: null,
  }
}

// drawn returns the name of the request's backend, which is the same for all tries: a share of the
// requests stays one if its backend fails.
function drawn(request) {
  if (request.drawn === null) request.drawn = weighted(request.options.backends)
  return request.drawn
}

// send answers the request's message. It is started with the request.
export var send = pipeline($=>$
  .onStart(request => void ($request = request))
  // The body of a HEAD request without a length must not be forwarded by HTTP/1.1.
  .replaceData(data => $request.head.method === 'HEAD' ? undefined : data)
  .handleData(data => keep($request, data))
  .handleMessageEnd(end => completed($request, end))
  .pipe(() => attempt)
  .onEnd(() => end($request))
)

var attempt = pipeline($=>$
  .onStart(() => void ($try = begin($request)))
  .forkRace([true, false]).to($=>$
    // Each try has its own context, which the next one does not change.
    .onStart(exchanging => void ($exchanging = exchanging))
    .pipe(() => $exchanging ? exchange : watch)
  )
  .replaceStreamEnd(end => $try.head ? end : proceed($request, $try))
  .pipe(() => $request.again ? attempt : pass)
)

var pass = pipeline($=>$)

// watch ends the try when it has failed without an answer.
var watch = pipeline($=>$
  .replaceData(() => undefined)
  .replaceMessageEnd(() => undefined)
  .replaceStreamEnd(() => undefined)
  .wait(() => $try.failed)
  .replaceStreamStart(() => new StreamEnd)
)

var exchange = pipeline($=>$
  .wait(() => $try.acquired)
  .pipe(() => $try.alone ? streamed : pooled)
  .replaceMessageStart(start => answered($try, start))
  .replaceData(data => $try.head && !$try.over ? data : undefined)
  .replaceMessageEnd(end => answerEnded($try, end))
  .replaceStreamEnd(end => exchangeEnded($try, end))
  .onEnd(() => leave($try))
)

// streamed forwards a request while it arrives, over a session of its own.
var streamed = pipeline($=>$
  .replaceMessageStart(start => [start, new Data(PRIMER)])
  .encodeHTTPRequest({ bufferSize: 1 })
  .pipe(() => checked, () => [$try.session])
  .decodeHTTPResponse(() => $try.request.head)
)

// pooled forwards a request when it is complete: Pipy's filter for several requests keeps those of
// HTTP/1.1 until then.
var pooled = pipeline($=>$
  .muxHTTP(
    // A number: Pipy mistakes an object for another one that had the same memory address.
    () => $try.session.id,
    () => ({ version: $try.session.version, maxIdle: $try.backend.policy.idleTimeout || IDLE, bufferSize: 0 })
  ).to($=>$
    .onStart(() => new Data)
    .pipe(() => checked, () => [$try.session])
  )
)

// checked carries a session whose answers are checked before Pipy reads them.
var checked = pipeline($=>$
  .onStart(
    function (session) {
      $session = session
      return new Data
    }
  )
  .handleMessageStart(start => shape($session.shape, start.head, false))
  .replaceData(data => $session.version === 1 ? write($session.shape, data) : data)
  .pipe(carry, () => [$session])
  .replaceData(data => receive($session, data))
)

// begin starts the next try: it chooses the endpoint.
function begin(request) {
  var t = newTry(request)
  request.again = false
  request.current = t
  request.tries++
  var kept = request.tries === 1 && request.options.kept
  var b = kept ? kept.backend : request.options.to || backendOf(drawn(request))
  var endpoint = kept ? kept.endpoint : b && choose(b, request.options.hash, request.tried)
  request.backend = b
  request.endpoint = endpoint
  if (!endpoint) {
    fail(t, 'no endpoint')
  } else if (refuses(b.policy) || !reserve(b.requests, b.policy.maxRequests)) {
    fail(t, 'overflow')
  } else {
    t.backend = b
    t.endpoint = endpoint
    t.kind = request.options.http2 && !b.document.http1 && !endpoint.http1 ? 'http2' : 'http1'
    count(t, 1)
    request.tried.push(endpoint)
    if (t.kind === 'http1' && isArriving(request) && !request.options.described.expects) {
      request.onSoon = () => start(t)
      after(SOON, start, t)
    } else {
      start(t)
    }
  }
  return t
}

// isArriving reports whether the body of a request of HTTP/1.1 is not complete yet.
function isArriving(request) {
  var described = request.options.described
  return Boolean(described) && !request.complete && !request.upgrade && (described.expects || hasBody(request.head))
}

// start gets the session of a try, once. A request that is still arriving is forwarded meanwhile.
function start(t) {
  if (t.started || t.left || t.outcome) return
  var request = t.request
  t.started = true
  request.onSoon = null
  t.alone = t.kind === 'http1' && isArriving(request)
  if (!acquire(t)) fail(t, 'overflow')
  else if (request.complete) limitTry(t)
}

function newTry(request) {
  var settleAcquired = null, settleFailed = null
  var acquired = new Promise(settle => settleAcquired = settle)
  var failed = new Promise(settle => settleFailed = settle)
  return {
    request, backend: null, endpoint: null, kind: '', granted, ended: sessionEnded, session: null, timer: null,
    started: false, alone: false, head: null, trailers: null, interim: false, informed: false, upgraded: false, finished: false, outcome: '', over: false, cut: false, left: false,
    counted: false, isRetry: request.retries > 0,
    // Pipy rejects a promise that can't be settled any more.
    acquired, failed, settleAcquired, settleFailed,
  }
}

// count counts a try (1), for which the backend's requests counter is reserved already, or
// uncounts it (-1) everywhere.
function count(t, n) {
  t.counted = n > 0
  t.endpoint.requests += n
  if (n < 0) add(t.backend.requests, n)
  if (t.isRetry) add(t.backend.retries, n)
}

function granted(t, session) {
  if (t.outcome || t.left) {
    release(session)
    return
  }
  t.session = session
  session.uses++
  // Clients number their streams 1, 3, 5 and so on.
  watchStream(session.watch, 2 * session.uses - 1)
  if (t.kind === 'http1') {
    expect(session.reader, t.request.head.method)
    var described = t.request.options.described
    if (described) {
      described.primed = t.alone
      follow(session.shape, t.request.head, described)
    }
  }
  t.settleAcquired()
}

// sessionEnded fails the try if its answer has not begun. The outcome depends on whether
// the server can have seen the request, which decides about retries.
function sessionEnded(t, session) {
  t.request.transportFailure = session.failure
  fail(t, session.uses > 1 ? 'stale' : session.opened ? 'reset' : 'unreachable')
}

// limitTry starts the timeout of the try, once the request is complete.
function limitTry(t) {
  var retry = t.request.options.retry
  if (retry && retry.perTry && !t.head && !t.outcome && !t.timer) t.timer = after(retry.perTry, fail, t, 'timeout')
}

// fail ends a try whose answer has not begun.
function fail(t, outcome) {
  if (t.outcome || t.head) return
  t.outcome = outcome
  t.settleFailed()
  // After an interim answer nothing else ends the try.
  if (t.informed && t.session) close(t.session)
}

// answered handles the start of an answer: it is passed on, or the request is retried.
function answered(t, start) {
  if (t.over) return
  var head = start.head
  if (head.status === 100) {
    t.interim = true
    return inform(t, start)
  }
  if (t.outcome || t.session.state === 'ended') {
    // Pipy has generated this answer for a connection that ended.
    t.over = true
    fail(t, 'reset')
    return new StreamEnd
  }
  var request = t.request
  observe(t.backend, t.endpoint, head.status >= 500)
  if (isRetriable(request, t, head)) {
    t.over = true
    fail(t, 'status')
    return new StreamEnd
  }
  dropOwn(head.headers)
  if (t.session.reader.length !== undefined) head.headers['content-length'] = `${t.session.reader.length}`
  t.trailers = takeTrailers(head)
  t.head = head
  t.upgraded = head.status === 101
  request.status = head.status
  request.kept = false
  request.body = null
  stop(t)
  return start
}

// inform passes an interim answer on to a client of HTTP/1.1.
function inform(t, start) {
  var connection = t.request.options.connection
  var interim = t.session.reader.interims.shift()
  if (!interim || t.over || t.outcome || !t.request.options.described || connection.old) return undefined
  follow(connection.shape, start.head, { interim })
  t.informed = true
  return start
}

// answerEnded distinguishes complete answers from truncated ones, which Pipy would make
// look complete.
function answerEnded(t, end) {
  if (t.interim) {
    t.interim = false
    return t.informed ? end : undefined
  }
  if (t.over || !t.head) return
  if (t.upgraded) return end
  var headers = t.head.headers
  var framed = t.session.reader.length === undefined && ('content-length' in headers || 'transfer-encoding' in headers)
  var cut = t.session.version === 1 ? !end.tail && framed && t.request.head.method !== 'HEAD' : !t.session.watch.ended
  if (cut) {
    t.over = true
    t.cut = true
    t.request.failure = t.request.failure || 'cut off'
    if (isGRPC(t.head)) return [cutOff(), new StreamEnd]
    t.request.options.connection.broken = true
    return new StreamEnd('ConnectionReset')
  }
  if (t.request.complete) {
    t.finished = true
    leave(t)
  }
  if (end.tail && end.tail.headers) dropOwn(end.tail.headers)
  var trailers = t.trailers || t.session.reader.trailers
  return trailers ? new MessageEnd({ headers: trailers }) : end
}

// exchangeEnded releases a dead connection at once: after a client has left in the middle
// of an answer, Pipy may keep the pipeline for a long time before it calls onEnd.
function exchangeEnded(t, end) {
  if (t.head && t.session.state === 'ended') leave(t)
  // The end that answerEnded returns comes here too.
  if (t.cut) return end
  if (t.over) return
  t.over = true
  fail(t, 'reset')
  return end
}

// leave releases what a try holds, once. The connection of an unfinished exchange is
// closed.
function leave(t) {
  if (t.left) return
  t.left = true
  stop(t)
  if (t.backend) withdraw(t)
  if (t.counted) count(t, -1)
  if (!t.session) return
  if (t.finished && !t.alone) {
    release(t.session)
    return
  }
  t.session.user = null
  close(t.session)
}

function stop(t) {
  if (t.timer) t.timer.cancel()
  t.timer = null
}

// proceed returns what follows a failed try: the request for the next try, or the final
// answer.
function proceed(request, t) {
  leave(t)
  if (t.endpoint && !['status', 'overflow', 'client left'].includes(t.outcome)) observe(t.backend, t.endpoint, true)
  var delay = retryDelay(request, t)
  if (delay < 0) return answer(request, t.outcome)
  var ready = delay > 0 ? new Timeout(delay).wait() : Promise.resolve()
  return ready.then(() => whenComplete(request)).then(() => resend(request, t))
}

function whenComplete(request) {
  if (request.complete || request.expired) return undefined
  return new Promise(settle => request.onComplete = settle)
}

function resend(request, t) {
  if (request.expired) return answer(request, 'timeout')
  if (!request.kept) return answer(request, t.outcome)
  request.again = true
  return [new MessageStart(request.head), request.body.size > 0 ? new Data(request.body) : null, request.end]
}

var answers = {
  'no endpoint': [503, 'no healthy upstream'],
  'overflow': [503, 'upstream connect error or disconnect/reset before headers. reset reason: overflow'],
  'unreachable': [503, 'upstream connect error or disconnect/reset before headers. reset reason: connection failure'],
  'reset': [503, 'upstream connect error or disconnect/reset before headers. reset reason: connection termination'],
  'timeout': [504, 'upstream request timeout'],
}

// answer returns the proxy's own answer to a request that no server answered.
function answer(request, outcome) {
  var found = answers[outcome] || answers.reset
  request.failure = outcome
  request.status = found[0]
  return [reply(request.head, found[0], found[1], outcome === 'overflow' ? { 'x-envoy-overloaded': 'true' } : {}), new StreamEnd]
}

// abort ends a request whose client has left.
export function abort(request) {
  stopRequest(request, 'client left')
}

// expire ends a request that has timed out.
function expire(request) {
  stopRequest(request, 'timeout')
}

function stopRequest(request, why) {
  var t = request.current
  if (request.ended || request.expired) return
  request.expired = true
  if (!t) return
  if (!t.head) {
    fail(t, why)
    if (request.onComplete) request.onComplete()
  } else if (!t.left && t.session) {
    request.failure = why
    close(t.session)
  }
}

function keep(request, data) {
  if (!request.kept) return
  if (request.body.size + data.size > KEPT) {
    request.kept = false
    request.body = null
  } else {
    request.body.push(data)
  }
}

function completed(request, end) {
  request.complete = true
  request.end = end
  if (request.options.timeout && !request.timer) request.timer = after(request.options.timeout, expire, request)
  if (request.onSoon) request.onSoon()
  if (request.current) limitTry(request.current)
  if (request.onComplete) request.onComplete()
  request.onComplete = null
}

// end is called when the request is over, for whatever reason.
function end(request) {
  request.ended = true
  if (request.timer) request.timer.cancel()
  request.timer = null
  request.current = null
  request.onComplete = null
  request.onSoon = null
}

// after calls the function with the arguments after that many seconds, unless the returned
// timeout is cancelled.
function after(seconds, f, a, b) {
  var timeout = new Timeout(seconds)
  timeout.wait().then(() => f(a, b), () => undefined)
  return timeout
}
