// Asks the clients to leave when another Pipy takes over in the running pod. HTTP/1 clients
// close their connections after the next answer. Pipy can't tell clients of HTTP/2.
//
// SIGINT is not used for that: Pipy 1.5.18 then drops the callbacks of promises that have just
// been settled, and their requests would hang.

import { publish, published, regularly } from './shared.js'

var leaving = false

// askToLeave is called in one of the threads.
export function askToLeave() {
  publish('leaving', true)
  leaving = true
}

regularly(() => void (leaving = leaving || published('leaving').some(asked => asked)))

// endConnection adds to the head of an answer that the connection ends, if clients should
// leave. The request's head is that of HTTP/1 if it has a protocol.
export function endConnection(request, answer) {
  if (leaving && request.protocol && answer.status !== 101) answer.headers.connection = 'close'
}
