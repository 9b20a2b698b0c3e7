// The form of HTTP/1.1 messages, changed after Pipy's encoder has written them.
//
// The encoder knows the length of a message only if it has all of it, and writes chunks
// otherwise, without trailers. A shape restores the length that the head says, writes trailers, and
// writes no chunks to clients of HTTP/1.0.

var LF = 10
var CHUNKED = 'transfer-encoding: chunked\r\n', LAST_CHUNK = '0\r\n\r\n'

// newShape returns the shape of the messages of one direction of a connection.
export function newShape() {
  return { head: null, plain: false, begun: false, ends: false, primed: false, wraps: false, source: null, sources: [] }
}

// PRIMER is written as the beginning of a body to make the encoder write the head at once, which it
// does otherwise with the second byte. A shape removes it again.
export var PRIMER = 'xx'

// follow announces a message. The source has its trailers, as an object by name, when it ends. It is
// primed if the body begins with a PRIMER. An interim answer has its whole text in "interim".
export function follow(shape, head, source) {
  shape.sources.push({ head, source })
}

// begin is called with each head that the encoder writes. Ends says that the reader knows no
// chunks.
export function begin(shape, head, ends) {
  shape.head = head
  shape.plain = false
  shape.begun = false
  shape.ends = ends
  var i = shape.sources.findIndex(s => s.head === head)
  shape.source = i < 0 ? null : shape.sources.splice(i, 1)[0].source
  shape.primed = shape.source !== null && shape.source.primed === true
  shape.wraps = false
}

// write returns what is written of the encoder's output.
export function write(shape, data) {
  if (!shape.head || data.size === 0) return data
  if (!shape.begun) {
    shape.begun = true
    return writeHead(shape, data)
  }
  if (shape.primed) {
    shape.primed = false
    return undefined
  }
  if (shape.wraps) {
    shape.wraps = false
    return chunkOf(data, shape.source.trailers)
  }
  if (!shape.plain) {
    var trailers = data.size === LAST_CHUNK.length && shape.source ? shape.source.trailers : null
    return trailers && data.toString() === LAST_CHUNK ? new Data(ending(trailers)) : data
  }
  var body = new Data(data)
  // A chunk is one event: its size, the data, and the end of a line.
  var size = body.shiftTo(c => c === LF)
  if (size.size === 3 && size.toString() === '0\r\n') return undefined
  body.pop(2)
  return body
}

function writeHead(shape, data) {
  if (shape.source && shape.source.interim) return new Data(shape.source.interim)
  var text = data.toString()
  if (text === undefined) return data
  if (!shape.ends) text = withoutKeepAlive(text)
  var at = text.lastIndexOf(CHUNKED)
  var length = shape.head.headers ? shape.head.headers['content-length'] : undefined
  if (shape.head.status === 304) return new Data(withLength(text, length))
  if (at < 0) return length === undefined && !shape.ends && shape.source && shape.source.trailers ? writeWhole(shape, text) : new Data(text)
  if (length === undefined && !shape.ends) return new Data(text)
  shape.plain = true
  var line = length === undefined ? '' : `content-length: ${length}\r\n`
  return new Data(text.substring(0, at) + line + text.substring(at + CHUNKED.length))
}

// withLength returns the head of an answer without a body with the length that the head says, if
// any: it is that of the body that the client has.
function withLength(text, length) {
  var at = text.lastIndexOf('content-length: ')
  var line = length === undefined ? '' : `content-length: ${length}\r\n`
  return at < 0 ? text : text.substring(0, at) + line + text.substring(text.indexOf('\r\n', at) + 2)
}

// withoutKeepAlive returns a head of HTTP/1.1 without the header that the encoder adds to each.
function withoutKeepAlive(text) {
  var added = 'connection: keep-alive\r\n'
  var at = text.endsWith(added + '\r\n') ? text.length - added.length - 2 : -1
  var line = text.substring(0, text.indexOf('\r\n'))
  return at < 0 || !(line.startsWith('HTTP/1.1') || line.endsWith('HTTP/1.1')) ? text : text.substring(0, at) + '\r\n'
}

// writeWhole writes the head of a message with trailers of which the encoder has written the length.
function writeWhole(shape, text) {
  var name = 'content-length: '
  var at = text.lastIndexOf(name)
  if (at < 0) return new Data(text)
  var end = text.indexOf('\r\n', at)
  var after = end + 2
  shape.wraps = text.substring(at + name.length, end) !== '0'
  return new Data(text.substring(0, at) + CHUNKED + text.substring(after) + (shape.wraps ? '' : ending(shape.source.trailers)))
}

// chunkOf returns a whole body as a chunk, with trailers.
function chunkOf(data, trailers) {
  var chunk = new Data(`${data.size.toString(16)}\r\n`)
  chunk.push(data)
  chunk.push('\r\n' + ending(trailers))
  return chunk
}

// ending returns the last chunk with the trailers.
function ending(trailers) {
  return '0\r\n' + Object.entries(trailers).map(entry => `${entry[0]}: ${entry[1]}\r\n`).join('') + '\r\n'
}
