// The form of HTTP/1.1 messages, changed after Pipy's encoder has written them.
//
// The encoder knows the length of a message only if it has all of it, and writes chunks
// otherwise. A shape restores the length that the head says, and writes no chunks to clients
// of HTTP/1.0.

var LF = 10

// newShape returns the shape of the messages of one direction of a connection.
export function newShape() {
  return { head: null, plain: false, begun: false, ends: false }
}

// begin is called with each head that the encoder writes. The version is that of the reader,
// '' if it reads chunks.
export function begin(shape, head, old) {
  shape.head = head
  shape.plain = false
  shape.begun = false
  shape.ends = old
}

// write returns what is written of the encoder's output.
export function write(shape, data) {
  if (!shape.head || data.size === 0) return data
  if (!shape.begun) {
    shape.begun = true
    return writeHead(shape, data)
  }
  if (!shape.plain) return data
  var body = new Data(data)
  // A chunk is one event: its size, the data, and the end of a line.
  var size = body.shiftTo(c => c === LF)
  if (size.size === 3 && size.toString() === '0\r\n') return undefined
  body.pop(2)
  return body
}

function writeHead(shape, data) {
  var text = data.toString()
  var chunked = 'transfer-encoding: chunked\r\n'
  var at = text === undefined ? -1 : text.lastIndexOf(chunked)
  if (at < 0) return data
  var length = shape.head.headers['content-length']
  if (length === undefined && !shape.ends) return data
  shape.plain = true
  var line = length === undefined ? '' : `content-length: ${length}\r\n`
  return new Data(text.substring(0, at) + line + text.substring(at + chunked.length))
}
