// The requests of a client's connection. What the client sends is checked before Pipy's decoder
// reads it, and messages that are cut off never look complete, at either end.

import { newRequestReader, read } from './framing.js'
import { newWatch, watch, pass } from './frames.js'
import { newShape, begin, write } from './shape.js'
import { timeHead } from './edge.js'

var $connection
var $exchange

// newRequests returns what a connection knows of its requests: what the client sends, and how
// answers are written. The connection is broken if an answer that has begun can't be
// completed, heard if the client has sent anything, and old if its last request is HTTP/1.0;
// last says that it ends after the current answer.
export function newRequests() {
  return { reader: newRequestReader(), watch: newWatch(true), shape: newShape(), heard: false, broken: false, old: false, last: false }
}

// answering returns a pipeline that answers all requests of a connection, with which it is
// started, by a pipeline that is started with the exchange. How makes the parts:
// pipeline() returns that pipeline, exchange(connection) a new exchange, abort(exchange) is called
// if the request's stream is reset, and left(connection) when the client has gone.
//
// Each connection needs its own pipeline: Pipy reuses pipelines, and data that one client had sent
// after an upgrade request would be read as the next client's.
export function answering(how) {
  return pipeline($=>$
    .onStart(connection => void ($connection = connection))
    .handleStreamEnd(() => gone(how, $connection))
    .replaceData(data => receive($connection, data))
    .handleData(() => pass($connection.watch))
    .demuxHTTP({ bufferSize: 1 }).to($=>$
      .onStart(() => void ($exchange = how.exchange($connection)))
      // A truncated request must not look complete to the server.
      .replaceMessageEnd(end => $connection.watch.cut ? how.abort($exchange) : end)
      .replaceStreamEnd(end => $connection.watch.cut ? how.abort($exchange) : end)
      .pipe(how.pipeline(), () => [$exchange])
    )
    .handleMessageStart(start => begin($connection.shape, start.head, $connection.old))
    // A truncated answer must not look complete.
    .replaceData(data => $connection.broken ? new StreamEnd('ConnectionReset') : write($connection.shape, data))
    .replaceMessageEnd(end => $connection.broken || $connection.last ? [end, new StreamEnd('ConnectionReset')] : end)
  )
}

function gone(how, connection) {
  connection.watch.cut = true
  how.left(connection)
}

// receive checks what the client sends.
function receive(connection, data) {
  if (data.size > 0) connection.heard = true
  var passed = read(connection.reader, data)
  if (connection.reader.http2 && passed instanceof Data) passed = watch(connection.watch, passed)
  if (connection.edge) timeHead(connection)
  return passed
}

// describe returns what was known of a request before Pipy's decoder read it, and undefined if
// it is HTTP/2. The head gets the request's own method, and that of a refused request is empty
// but for what its first line says.
export function describe(connection, head) {
  if (!head.protocol) return undefined
  var described = connection.reader.heads.shift()
  connection.old = head.protocol === 'HTTP/1.0'
  if (described.method !== head.method) head.method = described.method
  if (described.refused) {
    head.path = described.path
    head.headers = {}
  }
  return described
}
