// HTTP requests to backends: tried, and tried again where that is allowed.
//
// Each try takes a connection for itself until the answer is complete. HTTP/1.1 goes
// on as HTTP/1.1 and HTTP/2 as HTTP/2, as the server's application is used to.

import { backendOf, weighted, choose, acquire, release, observe } from './backend.js'
import { close, carry } from './session.js'

// How much of a request is kept to be sent again.
var KEPT = 256 * 1024
// How often a request that no server has seen is sent again without being asked to.
var UNSEEN = 2
// The time before the first retry, in seconds, if the policy says nothing.
var BACKOFF = 0.025
// After how many idle seconds connections are closed if the policy says nothing.
var IDLE = 300

var $request
var $try
var $exchanging

// newRequest returns a request with the head, to be sent to backends by their weights.
// Options may have {backends: [{backend, weight}]} or {to: backend}, timeout and retry
// as in a route, hash, http2, and onAbort, which is called when an answer that has
// begun can't be completed.
export function newRequest(head, options) {
  var request = {
    head, options, body: new Data, kept: true, complete: false, onComplete: null,
    tries: 0, retries: 0, unseen: 0, tried: [], current: null, again: false,
    expired: false, ended: false, status: 0, failure: '', timer: null,
    // A request that asks for another protocol is sent once.
    upgrade: !!head.headers.upgrade,
  }
  return request
}

// send takes the request's message and answers it. It is started with the request.
export var send = pipeline($=>$
  .onStart(request => void ($request = request))
  .handleData(data => keep($request, data))
  .handleMessageEnd(end => completed($request, end))
  .pipe(() => attempt)
  .onEnd(() => end($request))
)

var attempt = pipeline($=>$
  .onStart(() => void ($try = begin($request)))
  .forkRace([true, false]).to($=>$
    // With its own context: the next try does not change what this one goes by.
    .onStart(exchanging => void ($exchanging = exchanging))
    .pipe(() => $exchanging ? exchange : watch)
  )
  .replaceStreamEnd(evt => $try.head ? evt : proceed($request, $try))
  .pipe(() => $request.again ? attempt : pass)
)

var pass = pipeline($=>$)

// watch ends the try when it has failed without a word of the server's.
var watch = pipeline($=>$
  .replaceData(() => undefined)
  .replaceMessageEnd(() => undefined)
  .replaceStreamEnd(() => undefined)
  .wait(() => $try.failed)
  .replaceStreamStart(() => new StreamEnd)
)

var exchange = pipeline($=>$
  .wait(() => $try.acquired)
  .muxHTTP(
    () => $try.session,
    () => ({ version: () => $try.session.version, maxIdle: $try.backend.policy.idleTimeout || IDLE, maxHeaderSize: '64k', bufferSize: 0 })
  ).to(carry)
  .replaceMessageStart(start => answered($try, start))
  .replaceData(data => $try.head && !$try.over ? data : undefined)
  .replaceMessageEnd(end => answerEnded($try, end))
  .replaceStreamEnd(end => exchangeEnded($try, end))
  .onEnd(() => leave($try))
)

// begin chooses where the next try goes.
function begin(request) {
  var settleAcquired = null, settleFailed = null
  var t = {
    request, backend: null, endpoint: null, counted: false, session: null, takeBack: null, timer: null,
    head: null, interim: false, upgraded: false, finished: false, outcome: '', over: false, left: false,
    acquired: new Promise(settle => settleAcquired = settle),
    failed: new Promise(settle => settleFailed = settle),
  }
  t.settle = settleFailed
  request.again = false
  request.current = t
  request.tries++
  var b = request.options.to || backendOf(weighted(request.options.backends))
  var endpoint = b && choose(b, request.options.hash, request.tried)
  if (!endpoint) {
    fail(t, 'no endpoint')
    return t
  }
  t.backend = b
  t.endpoint = endpoint
  if (b.policy.maxRequests && b.requests >= b.policy.maxRequests) {
    fail(t, 'overflow')
    return t
  }
  b.requests++
  endpoint.requests++
  t.counted = true
  request.tried.push(endpoint)
  t.takeBack = acquire(b, endpoint, request.options.http2 ? 'http2' : 'http1',
    function (session) {
      if (t.outcome) {
        release(b, session)
        return
      }
      t.session = session
      session.uses++
      // Whether the server has seen anything decides what may be tried again.
      session.fail = () => fail(t, session.uses > 1 ? 'stale' : session.opened ? 'reset' : 'unreachable')
      settleAcquired()
    }
  )
  if (!t.takeBack) {
    fail(t, 'overflow')
  } else if (request.complete) {
    limitTry(t)
  }
  return t
}

// limitTry begins the time of the try, when all of the request is there to be sent.
function limitTry(t) {
  var retry = t.request.options.retry
  if (retry && retry.perTry && !t.head && !t.outcome) t.timer = after(retry.perTry, () => fail(t, 'timeout'))
}

// fail ends a try whose answer has not begun.
function fail(t, outcome) {
  if (t.outcome || t.head) return
  t.outcome = outcome
  t.settle()
}

// answered looks at the beginning of an answer.
function answered(t, start) {
  if (t.over) return
  var head = start.head
  if (head.status === 100) {
    t.interim = true
    return
  }
  if (t.outcome || t.session.state === 'ended') {
    // It is one that Pipy has made up for a connection that ended.
    t.over = true
    fail(t, 'reset')
    return new StreamEnd
  }
  var request = t.request
  observe(t.backend, t.endpoint, head.status >= 500)
  if (retriable(request, t, head)) {
    t.over = true
    t.status = head.status
    fail(t, 'status')
    return new StreamEnd
  }
  t.head = head
  t.upgraded = head.status === 101
  request.status = head.status
  request.endpoint = t.endpoint
  request.kept = false
  request.body = null
  if (t.timer) t.timer()
  return start
}

// answerEnded tells a complete answer from one that was cut off, which Pipy would make
// look complete.
function answerEnded(t, end) {
  if (t.interim) {
    t.interim = false
    return
  }
  if (t.over || !t.head) return
  if (t.upgraded) return end
  var headers = t.head.headers
  var framed = 'content-length' in headers || 'transfer-encoding' in headers
  if (t.session.negotiated !== 2 && !end.tail && framed && t.request.head.method !== 'HEAD') {
    t.over = true
    t.request.failure = 'cut off'
    if (t.request.options.onAbort) t.request.options.onAbort()
    return new StreamEnd('ConnectionReset')
  }
  t.finished = t.request.complete
  leave(t)
  return end
}

function exchangeEnded(t, end) {
  if (t.over) return
  t.over = true
  fail(t, 'reset')
  return end
}

// leave gives back what a try holds, once.
function leave(t) {
  if (t.left) return
  t.left = true
  if (t.timer) t.timer()
  if (t.takeBack) t.takeBack()
  if (t.counted) {
    t.backend.requests--
    t.endpoint.requests--
  }
  if (!t.session) return
  t.session.fail = null
  if (t.finished) {
    release(t.backend, t.session)
  } else {
    close(t.session)
  }
}

// proceed returns what comes of a try that has failed: the request again, or the last
// answer.
function proceed(request, t) {
  leave(t)
  if (t.endpoint && t.outcome !== 'status' && t.outcome !== 'overflow') observe(t.backend, t.endpoint, true)
  var delay = retryDelay(request, t)
  if (delay < 0) return answer(request, t.outcome)
  var again = () => new Promise(
    function (settle) {
      if (request.complete) {
        settle()
      } else {
        request.onComplete = settle
      }
    }
  ).then(
    function () {
      if (request.expired) return answer(request, 'timeout')
      if (!request.kept) return answer(request, t.outcome)
      request.again = true
      var body = request.body.size > 0 ? new Data(request.body) : null
      return [new MessageStart(request.head), body, request.end]
    }
  )
  return delay > 0 ? new Timeout(delay).wait().then(again) : again()
}

// retryDelay returns after how many seconds a request whose try has failed is tried
// again, or -1 if it is not.
function retryDelay(request, t) {
  if (request.expired || !request.kept || request.upgrade) return -1
  var retry = request.options.retry
  if (retry && (t.outcome === 'status' || retriesOn(retry, t.outcome)) && mayRetry(request, t)) {
    request.retries++
    var base = retry.backoff || BACKOFF
    return Math.random() * Math.min(base * (Math.pow(2, request.retries) - 1), base * 10)
  }
  var unseen = t.outcome === 'unreachable' || (t.outcome === 'stale' && idempotent(request.head.method))
  if (unseen && request.unseen < UNSEEN) {
    request.unseen++
    return 0
  }
  return -1
}

function mayRetry(request, t) {
  var b = t.backend
  return request.retries < request.options.retry.attempts && !(b && b.policy.maxRetries && b.retries >= b.policy.maxRetries)
}

function idempotent(method) {
  return ['GET', 'HEAD', 'OPTIONS', 'TRACE', 'PUT', 'DELETE'].includes(method)
}

// retriesOn reports whether a try with the outcome, which is not an answer, is tried
// again by the policy.
function retriesOn(retry, outcome) {
  switch (outcome) {
    case 'unreachable':
      return retry.on.some(on => ['5xx', 'gateway-error', 'reset', 'connect-failure'].includes(on))
    case 'stale':
    case 'reset':
    case 'timeout':
      return retry.on.some(on => ['5xx', 'gateway-error', 'reset'].includes(on))
  }
  return false
}

var grpcStatuses = { '1': 'cancelled', '4': 'deadline-exceeded', '8': 'resource-exhausted', '13': 'internal', '14': 'unavailable' }

// retriable reports whether an answer with the head is not wanted yet.
function retriable(request, t, head) {
  var retry = request.options.retry
  if (!retry || !request.kept || request.expired || !mayRetry(request, t)) return false
  var status = head.status
  return retry.on.some(
    function (on) {
      switch (on) {
        case '5xx':
          return status >= 500
        case 'gateway-error':
          return status >= 502 && status <= 504
        case 'retriable-4xx':
          return status === 409
      }
      return grpcStatuses[head.headers['grpc-status']] === on
    }
  )
}

var answers = {
  'no endpoint': [503, 'no healthy upstream'],
  'overflow': [503, 'upstream connect error or disconnect/reset before headers. reset reason: overflow'],
  'unreachable': [503, 'upstream connect error or disconnect/reset before headers. reset reason: connection failure'],
  'reset': [503, 'upstream connect error or disconnect/reset before headers. reset reason: connection termination'],
  'stale': [503, 'upstream connect error or disconnect/reset before headers. reset reason: connection termination'],
  'timeout': [504, 'upstream request timeout'],
}

// answer returns the proxy's own answer to a request that no server answered.
function answer(request, outcome) {
  var found = answers[outcome] || answers.reset
  request.failure = outcome
  request.status = found[0]
  return [reply(request.head, found[0], found[1], outcome === 'overflow' ? { 'x-envoy-overloaded': 'true' } : {}), new StreamEnd]
}

// reply returns an answer of the proxy's own, which gRPC clients are given as they
// understand it.
export function reply(head, status, text, headers) {
  var type = head.headers['content-type']
  if (type && `${type}`.startsWith('application/grpc')) {
    var code = { '400': '13', '401': '16', '403': '7', '404': '12' }[`${status}`] || '14'
    return new Message({ status: 200, headers: { ...headers, 'content-type': 'application/grpc', 'grpc-status': code, 'grpc-message': text.trim() } })
  }
  return new Message({ status, headers: { ...headers, 'content-type': 'text/plain' } }, text)
}

// expire ends a request whose time is up.
function expire(request) {
  request.expired = true
  var t = request.current
  if (!t || request.ended) return
  if (!t.head) {
    fail(t, 'timeout')
  } else if (!t.left && t.session) {
    request.failure = 'timeout'
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
  if (request.options.timeout && !request.timer) request.timer = after(request.options.timeout, () => expire(request))
  if (request.current) limitTry(request.current)
  var settle = request.onComplete
  request.onComplete = null
  if (settle) settle()
}

// end is called when the request is over, whoever ended it.
function end(request) {
  if (request.ended) return
  request.ended = true
  if (request.timer) request.timer()
  if (request.options.onEnd) request.options.onEnd(request)
}

// after calls the function in so many seconds. It returns a function that prevents it.
function after(seconds, f) {
  var timeout = new Timeout(seconds)
  timeout.wait().then(f, () => undefined)
  return () => timeout.cancel()
}
