// Unary gRPC calls to services outside the mesh, by plaintext HTTP/2.

import { newBackend } from './backend.js'
import { newRequest, send } from './http-client.js'

var $call

// newService returns the service at an address of the form host:port. The name identifies
// it among services.
export function newService(name, address) {
  return { address, backend: newBackend({ name, endpoints: [{ address }] }, `service/${name}`) }
}

// call sends the protobuf message to a method and resolves to the message of the answer, or
// to null if the call has failed in any way. It does not reject. The call may be repeated
// if its connection ends.
export function call(service, method, message, timeout) {
  var head = {
    method: 'POST', scheme: 'http', authority: service.address, path: method,
    headers: { host: service.address, 'content-type': 'application/grpc', te: 'trailers' },
  }
  var request = newRequest(head, {
    to: service.backend, http2: true, timeout, retry: { on: ['connect-failure', 'reset'], attempts: 1, backoff: 0.001 }, connection: {},
  })
  return new Promise(
    settle => calls.spawn({ request, body: frame(protobuf.encode(message)), settle })
  )
}

var calls = pipeline($=>$
  .onStart(
    function (call) {
      $call = call
      return new Message(call.request.head, call.body)
    }
  )
  .pipe(send, () => [$call.request])
  .handleMessage(answer => settle($call, answerOf($call.request, answer)))
  .replaceMessageEnd(end => [end, new StreamEnd])
  .onEnd(() => settle($call, null))
)

// settle settles the call once.
function settle(call, answer) {
  var f = call.settle
  call.settle = null
  if (f) f(answer)
}

// answerOf returns the message of an answer, or null if the call has failed.
function answerOf(request, answer) {
  if (request.failure || answer.head.status !== 200 || !answer.tail) return null
  var trailers = answer.tail.headers
  if (!trailers || trailers['grpc-status'] !== '0') return null
  return unframe(answer.body)
}

// frame returns the message with gRPC's prefix: no compression, and the length.
function frame(message) {
  var n = message.size
  return new Data([0, n >> 24 & 255, n >> 16 & 255, n >> 8 & 255, n & 255]).push(message)
}

function unframe(body) {
  if (!body || body.size < 5) return null
  var rest = new Data(body)
  var prefix = rest.shift(5).toArray()
  var n = prefix[1] * 16777216 + prefix[2] * 65536 + prefix[3] * 256 + prefix[4]
  return prefix[0] === 0 && n === rest.size ? protobuf.decode(rest) : null
}

// messagesOf returns the messages in a field. (Pipy never frees what getMessage and
// getString return.)
export function messagesOf(message, field) {
  return message.getBytesArray(field).map(data => protobuf.decode(data))
}

// textOf returns the text of a field, '' if it is absent.
export function textOf(message, field) {
  var texts = message.getStringArray(field)
  return texts.length > 0 ? texts[texts.length - 1] : ''
}
