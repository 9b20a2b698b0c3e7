// Calls of the application, at the address and port that the client has called. They
// come from addresses whose connections are not redirected again.

import { hostPort } from './address.js'
import { reply, takeTrailers } from './reply.js'

// Bodies of a known length up to this one are kept whole, and so keep their length;
// others are passed on as they come, in chunks.
var WHOLE = 1024 * 1024
var CHUNKED = 1

var SOL_IP = 0, IP_BIND_ADDRESS_NO_PORT = 24

var $call

// newCall returns a call of the address and port. A call with a request has its head,
// and is broken when an answer that has begun can't be completed.
export function newCall(address, port, head, http2) {
  return { address, port, head, http2, outbound: null, connected: false, failure: '', host: hostPort(address, port), received: 0, sent: 0, body: 0, skipped: false, answered: false, ended: false, broken: false, status: 0, answerHead: null, trailers: null }
}

var connectOptions = {
  idleTimeout: 0,
  connectTimeout: 10,
  onState: outbound => follow($call, outbound),
}

// follow notes what becomes of the connection.
function follow(call, outbound) {
  switch (outbound.state) {
    case 'open':
      // The port is chosen when it is known whom to connect to, or there would be no
      // more ports than one address has.
      outbound.socket.setRawOption(SOL_IP, IP_BIND_ADDRESS_NO_PORT, new Data([1, 0, 0, 0]))
      outbound.socket.bind(call.address.indexOf(':') >= 0 ? '::6' : '127.0.0.6', 0)
      break
    case 'connected':
      call.connected = true
      call.outbound = outbound
      break
    case 'closed':
      if (!call.connected) call.failure = 'connection failure'
      call.outbound = null
      break
  }
}

// stream carries a connection. It is started with a call.
export var stream = pipeline($=>$
  .onStart(
    function (call) {
      $call = call
      // The application may be the one who speaks first.
      return new Data
    }
  )
  .handleData(data => void ($call.received += data.size))
  .connect(() => $call.host, connectOptions)
  .handleData(data => void ($call.sent += data.size))
)

// exchange carries a request and its answer. It is started with a call. An answer that
// the application did not complete is not completed here either.
export var exchange = pipeline($=>$
  .onStart(call => void ($call = call))
  .handleData(data => void ($call.received += data.size))
  .pipe(
    function (evt) {
      if (!(evt instanceof MessageStart)) return
      if ($call.http2 || evt.head.headers.upgrade) return multiplexed
      var length = evt.head.headers['content-length']
      return length === undefined && evt.head.headers['transfer-encoding'] || length > WHOLE ? chunked : whole
    }
  )
  .replaceMessageStart(evt => answer($call, evt))
  .replaceData(data => passBody($call, data))
  .replaceMessageEnd(evt => finish($call, evt))
  .replaceStreamEnd(evt => abandon($call, evt))
)

var whole = pipeline($=>$
  .encodeHTTPRequest({ bufferSize: WHOLE })
  .connect(() => $call.host, connectOptions)
  .decodeHTTPResponse(() => $call.head)
)

var chunked = pipeline($=>$
  .encodeHTTPRequest({ bufferSize: CHUNKED })
  .connect(() => $call.host, connectOptions)
  .decodeHTTPResponse(() => $call.head)
)

// HTTP/2, and HTTP/1.1 that may become something else. Each call has a connection of
// its own: one that the application ends takes no other call with it.
var multiplexed = pipeline($=>$
  .muxHTTP(() => $call, { version: () => $call.http2 ? 2 : 1, maxHeaderSize: '64k' }).to($=>$
    .connect(() => $call.host, connectOptions)
  )
)

// answer returns the beginning of the answer, unless it is not the last one or one that
// Pipy made up for want of another.
function answer(call, start) {
  var head = start.head
  if (head.status < 200 && head.status !== 101) {
    call.skipped = true
    return []
  }
  if (!call.connected || head.status >= 500 && (!head.headers || Object.keys(head.headers).length === 0)) {
    call.failure = call.failure || 'connection termination'
    return []
  }
  call.answered = true
  call.status = head.status
  call.answerHead = head
  head.protocol = 'HTTP/1.1'
  if (call.http2) call.trailers = takeTrailers(head)
  if (head.status === 101) head.headers.connection = 'upgrade'
  if (head.status === 204 || head.status === 304) {
    // Such an answer has no body, whatever length it tells.
    call.ended = true
    hangUp(call)
    return [start, new MessageEnd]
  }
  return start
}

function passBody(call, data) {
  if (!call.answered) return []
  call.sent += data.size
  call.body += data.size
  return data
}

function finish(call, end) {
  if (call.skipped) {
    call.skipped = false
    return []
  }
  if (!call.answered || call.ended) return []
  if (call.status === 101) return end
  if (isShort(call)) return abandon(call, new StreamEnd('ConnectionReset'))
  call.ended = true
  if (call.http2) hangUp(call)
  return call.trailers ? new MessageEnd({ headers: call.trailers }) : end
}

// hangUp closes the connection, but not before Pipy has done with what it gave.
function hangUp(call) {
  new Timeout(0).wait().then(
    function () {
      if (call.outbound) call.outbound.close()
    }
  )
}

// isShort says whether the answer is less than it promised to be.
function isShort(call) {
  var promised = call.answerHead.headers['content-length']
  return promised !== undefined && call.head.method !== 'HEAD' && call.body < Number.parseInt(promised)
}

// abandon returns what comes of an exchange whose connection has ended.
function abandon(call, end) {
  if (call.ended || call.status === 101) return end
  if (!call.answered) {
    call.ended = true
    call.failure = call.failure || 'connection termination'
    return [unavailable(call), end]
  }
  call.ended = true
  var headers = call.answerHead.headers
  if (headers['content-length'] === undefined && headers['transfer-encoding'] === undefined && !call.http2) {
    // The end of the connection is the end of such an answer.
    return [new MessageEnd, end]
  }
  call.failure = 'connection termination'
  call.broken = true
  return new StreamEnd('ConnectionReset')
}

// unavailable is the answer when the application gives none.
function unavailable(call) {
  return reply(call.head, 503, `upstream connect error or disconnect/reset before headers. reset reason: ${call.failure}`, {})
}
