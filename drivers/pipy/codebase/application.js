// Connections to the pod's application, at the address and port that the client called.
// They are made from source addresses that are exempt from redirection.

import { hostPort } from './address.js'
import { cutOff, isGRPC, reply, takeTrailers } from './reply.js'
import { dropOwn } from './request.js'
import { newAnswerReader, expect, openTunnel, read } from './framing.js'
import { newWatch, watch, watchStream } from './frames.js'
import { PRIMER, newShape, begin, follow, write } from './shape.js'

// Pipy's encoder writes a body as soon as it has more than this many bytes.
var BUFFERED = 1

var SOL_IP = 0, IP_BIND_ADDRESS_NO_PORT = 24

var $call

// newCall returns a call to the address and port. The head is that of the request, if
// there is one. The call is broken if an answer that has begun can't be completed. Its
// onConnected, if set, is called with it. It must not be a closure over the call's connection,
// which PipyJS would never free.
export function newCall(address, port, head, http2, described) {
  var reader = newAnswerReader()
  if (http2) openTunnel(reader, true)
  else if (head) expect(reader, head.method)
  var shape = newShape()
  var primed = !http2 && Boolean(described) && hasBody(head)
  if (described) {
    described.primed = primed
    follow(shape, head, described)
  }
  return {
    reader, watch: newWatch(false), shape, primed, answers: null, informed: false, gone: false,
    address, port, head, http2, outbound: null, connected: false, onConnected: null, caller: null, counts: null, failure: '', host: hostPort(address, port), received: 0, sent: 0, body: 0, skipped: false, answered: false, ended: false, broken: false, status: 0, answerHead: null, trailers: null,
  }
}

var connectOptions = {
  idleTimeout: 0,
  connectTimeout: 10,
  onState: outbound => changed($call, outbound),
}

// changed handles the connection's state changes.
function changed(call, outbound) {
  switch (outbound.state) {
    case 'open':
      // The kernel must choose the port at connect time: then one port can serve several
      // destinations.
      outbound.socket.setRawOption(SOL_IP, IP_BIND_ADDRESS_NO_PORT, new Data([1, 0, 0, 0]))
      outbound.socket.bind(call.address.indexOf(':') >= 0 ? '::6' : '127.0.0.6', 0)
      break
    case 'connected':
      call.connected = true
      call.outbound = outbound
      if (call.gone) hangUp(call)
      if (call.onConnected) call.onConnected(call)
      break
    case 'closed':
      if (!call.connected) call.failure = 'connection failure'
      call.outbound = null
      break
  }
}

// stream forwards a connection. It is started with a call.
export var stream = pipeline($=>$
  .onStart(
    function (call) {
      $call = call
      // The application may speak first.
      return new Data
    }
  )
  .handleData(data => received($call, data.size))
  .connect(() => $call.host, connectOptions)
  .handleData(data => sent($call, data.size))
)

function received(call, size) {
  call.received += size
  if (call.counts) call.counts.received.value += size
}

function sent(call, size) {
  call.sent += size
  if (call.counts) call.counts.sent.value += size
}

// exchange forwards a request and its answer. It is started with a call. An answer that
// the application leaves incomplete stays incomplete.
export var exchange = pipeline($=>$
  .onStart(call => void ($call = call))
  .handleData(data => void ($call.received += data.size))
  .pipe(
    function (evt) {
      if (!(evt instanceof MessageStart)) return
      if ($call.http2 || evt.head.headers.upgrade) return multiplexed
      return streamed
    }
  )
  .replaceMessageStart(evt => answer($call, evt))
  .replaceData(data => passBody($call, data))
  .replaceMessageEnd(evt => finish($call, evt))
  .replaceStreamEnd(evt => abandon($call, evt))
)

var streamed = pipeline($=>$
  .replaceMessageStart(start => $call.primed ? [start, new Data(PRIMER)] : start)
  .encodeHTTPRequest({ bufferSize: BUFFERED })
  .handleMessageStart(start => begin($call.shape, start.head, false))
  .replaceData(data => write($call.shape, data))
  .connect(() => $call.host, connectOptions)
  .replaceData(data => read($call.reader, data))
  .decodeHTTPResponse(() => $call.head)
)

// For HTTP/2, and HTTP/1.1 with an upgrade. Each call has its own connection, so that
// closing it affects no other call.
var multiplexed = pipeline($=>$
  .muxHTTP(() => $call, { version: () => $call.http2 ? 2 : 1 }).to($=>$
    .onStart(() => watchStream($call.watch, 1))
    .connect(() => $call.host, connectOptions)
    .replaceData(data => $call.http2 ? watch($call.watch, data) : read($call.reader, data))
  )
)

// hasBody reports whether a request with the head has a body.
export function hasBody(head) {
  return head.headers['transfer-encoding'] !== undefined || Number.parseInt(head.headers['content-length']) > 0
}

// answer passes the start of the answer on, also of interim ones if the call has the shape of the
// client's answers. It drops those that Pipy itself generates when the connection fails.
function answer(call, start) {
  var head = start.head
  if (head.status < 200 && head.status !== 101) {
    call.skipped = true
    var interim = call.reader.interims.shift()
    call.informed = Boolean(call.answers && interim)
    if (!call.informed) return []
    follow(call.answers, head, { interim })
    return start
  }
  if (!call.connected || head.status >= 500 && (!head.headers || Object.keys(head.headers).length === 0)) {
    call.failure = call.failure || 'connection termination'
    return []
  }
  call.answered = true
  call.status = head.status
  call.answerHead = head
  head.protocol = 'HTTP/1.1'
  dropOwn(head.headers)
  if (call.reader.length !== undefined) head.headers['content-length'] = `${call.reader.length}`
  if (call.http2) call.trailers = takeTrailers(head)
  if (head.status === 101) head.headers.connection = 'upgrade'
  if (head.status === 204 || head.status === 304) {
    // Such an answer has no body, whatever its content-length.
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
    return call.informed ? end : []
  }
  if (!call.answered || call.ended) return []
  if (call.status === 101) return end
  if (isShort(call) || call.http2 && !call.watch.ended || call.reader.failure) return abandon(call, new StreamEnd('ConnectionReset'))
  call.ended = true
  if (call.http2) hangUp(call)
  if (end.tail && end.tail.headers) dropOwn(end.tail.headers)
  var trailers = call.trailers || call.reader.trailers
  return trailers ? new MessageEnd({ headers: trailers }) : end
}

// hangUp closes the connection, after Pipy has processed the current event.
export function hangUp(call) {
  call.gone = true
  new Timeout(0).wait().then(
    function () {
      if (call.outbound) call.outbound.close()
    }
  )
}

// isShort reports whether the body is shorter than its content-length.
function isShort(call) {
  var length = call.answerHead.headers['content-length']
  return length !== undefined && call.head.method !== 'HEAD' && call.body < Number.parseInt(length)
}

// abandon ends an exchange whose connection has ended, with an error answer if none has
// begun.
function abandon(call, end) {
  if (call.ended || call.status === 101) return end
  if (!call.answered) {
    call.ended = true
    call.failure = call.failure || 'connection termination'
    return [unavailable(call), end]
  }
  call.ended = true
  var headers = call.answerHead.headers
  if (headers['content-length'] === undefined && headers['transfer-encoding'] === undefined && !call.http2 && !end.error) {
    // Such an answer ends with the connection.
    return [new MessageEnd, end]
  }
  call.failure = 'connection termination'
  if (isGRPC(call.answerHead)) return [cutOff(), end]
  call.broken = true
  return new StreamEnd('ConnectionReset')
}

// unavailable is the answer if the application gives none.
function unavailable(call) {
  return reply(call.head, 503, `upstream connect error or disconnect/reset before headers. reset reason: ${call.failure}`, {})
}
