// What an HTTP/1.1 connection transmits, checked before Pipy's decoder reads it.
//
// The decoder reads any byte of a chunk's first line as a digit of its size, takes the end of
// a line wherever there is a line feed, knows few methods, and keeps one of several headers
// of a name. A reader passes on only what has one meaning, in the form that the decoder
// expects; on HTTP/2 and after an upgrade it passes on everything. Nothing follows what is
// refused.

import { isOwn, isToken, isTrailer } from './request.js'

// What a reader expects next.
var HEAD = 0, LENGTH = 1, SIZE = 2, CHUNK = 3, CHUNK_END = 4, TRAILERS = 5, REST = 6, HELD = 7, PASSED = 8, REFUSED = 9

// Limits in bytes: the decoder fails at a line of 16 KiB, and its lengths have 31 bits.
var LARGEST_HEAD = 64 * 1024, LARGEST_LINE = 16 * 1024 - 16, LARGEST_SIZE_LINE = 4096, LARGEST_LENGTH = 2147483647
// How many bytes of a head are searched for its end at first.
var USUAL_HEAD = 4096
// The methods of HTTP are much shorter.
var LARGEST_METHOD = 64

var CR = 13, LF = 10, SPACE = 32
var nul = String.fromCharCode(0)
var hexadecimal = '0123456789abcdefABCDEF', decimal = '0123456789'

// The methods that the decoder knows. A request with another one is passed on as POST.
var methods = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'CONNECT', 'OPTIONS', 'TRACE']

// newRequestReader returns a reader of what a client sends. Its heads describe the requests
// that the decoder has been passed, in order: {method, path, expects, refused,
// trailers}. Those of one that is
// refused are empty if it is not HTTP.
export function newRequestReader() {
  return newReader(true)
}

// newAnswerReader returns a reader of what a server sends. Before each answer expect() must
// be called. Its interims are the texts of interim answers, for which the decoder gets
// a 100; its length is that of a body that the answer does not have, which the decoder does not get. Its failure says why the connection can't be used any more.
export function newAnswerReader() {
  return newReader(false)
}

function newReader(ofRequests) {
  return { ofRequests, http2: false, state: HEAD, pending: null, left: 0, size: 0, heads: [], current: null, interims: [], length: undefined, method: '', idle: !ofRequests, failure: '', trailers: null }
}

// isInHead reports whether the head of a message has begun, and is not complete.
export function isInHead(reader) {
  return reader.state === HEAD && reader.pending !== null
}

// expect prepares for the answer to a request with the method.
export function expect(reader, method) {
  reader.method = method
  reader.idle = false
  reader.trailers = null
  reader.length = undefined
  reader.interims = []
}

// openTunnel ends the reading: what follows is HTTP/2, or not HTTP at all.
export function openTunnel(reader, http2) {
  reader.state = PASSED
  reader.http2 = http2
}

// read returns what is passed on of the data, which may be nothing. Where the data is
// refused within a message, the stream ends.
export function read(reader, data) {
  if (reader.state === PASSED) {
    var held = reader.pending
    reader.pending = null
    return held ? held.push(data) : data
  }
  if (reader.state === REFUSED || data.size === 0) return data.size === 0 ? data : undefined
  var input = reader.pending ? reader.pending.push(data) : new Data(data)
  var output = new Data
  reader.pending = null
  for (var go = input.size > 0; go; go = go && input.size > 0) go = step(reader, input, output)
  if (input.size > 0 && reader.state !== REFUSED) reader.pending = input
  if (reader.state === REFUSED && (reader.failure || !reader.ofRequests)) {
    return output.size > 0 ? [output, new StreamEnd('ConnectionReset')] : new StreamEnd('ConnectionReset')
  }
  return output.size > 0 ? output : undefined
}

// step moves the next part of the input to the output. It returns false if more input is
// needed.
function step(reader, input, output) {
  switch (reader.state) {
    case HEAD:
      return readHead(reader, input, output)
    case LENGTH:
      return readBody(reader, input, output, HEAD)
    case CHUNK:
      return readBody(reader, input, output, CHUNK_END)
    case SIZE:
      return readSize(reader, input, output)
    case CHUNK_END:
      return readChunkEnd(reader, input, output)
    case TRAILERS:
      return readTrailer(reader, input, output)
    case REST:
    case PASSED:
      output.push(input.shift(input.size))
      return false
  }
  return false
}

// fail refuses what follows a message that has begun, or an answer.
function fail(reader, why) {
  reader.state = REFUSED
  reader.failure = why
  return false
}

// refuse answers a request that can't be passed on: the decoder gets another one in its place.
// The line is the first one, as far as there is one.
function refuse(reader, output, status, text, line) {
  var parts = line.split(' ')
  var http = parts.length === 3 && isToken(parts[0]) && parts[2].startsWith('HTTP/')
  var details = http ? 'invalid_request' : 'not_http'
  reader.state = REFUSED
  reader.heads.push({ method: http ? parts[0] : '', path: http ? parts[1] : '', expects: false, refused: { status, text, details } })
  output.push('GET / HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n')
  return false
}

// reject refuses a head.
function reject(reader, output, status, text, line) {
  return reader.ofRequests ? refuse(reader, output, status, text, line) : fail(reader, text)
}

function readBody(reader, input, output, next) {
  var part = input.shift(Math.min(reader.left, input.size))
  reader.left -= part.size
  output.push(part)
  if (reader.left > 0) return false
  complete(reader, next)
  return true
}

// complete changes the state after a part of a message.
function complete(reader, next) {
  reader.state = next
  if (next === HEAD && !reader.ofRequests) reader.idle = true
}

// lineOf takes a line without its end from the input. It returns undefined if there is none
// yet, and null if it is not valid.
function lineOf(input, most) {
  var bytes = new Data(input).shift(Math.min(input.size, most)).toArray()
  var end = bytes.indexOf(LF)
  if (end < 0) return input.size >= most ? null : undefined
  var text = input.shift(end + 1).toString()
  if (text === undefined || end === 0 || bytes[end - 1] !== CR) return null
  text = text.substring(0, text.length - 2)
  return text.indexOf('\r') < 0 && text.indexOf(nul) < 0 ? text : null
}

// readSize reads the first line of a chunk. Extensions are not passed on.
function readSize(reader, input, output) {
  var line = lineOf(input, LARGEST_SIZE_LINE)
  if (line === undefined) return false
  var semicolon = line === null ? -1 : line.indexOf(';')
  // (Pipy's trimEnd returns nothing.)
  var digits = line === null ? '' : semicolon < 0 ? line : line.charAt(0) === ' ' ? '' : line.substring(0, semicolon).trim()
  var size = sizeOf(digits)
  if (size < 0) return fail(reader, 'an invalid chunk')
  output.push(size.toString(16) + '\r\n')
  reader.left = size
  reader.size = 0
  reader.state = size > 0 ? CHUNK : TRAILERS
  return true
}

// sizeOf returns the number that the hexadecimal digits mean, or -1.
function sizeOf(digits) {
  if (digits.length === 0 || digits.length > 16 || !consistsOf(digits, hexadecimal)) return -1
  var size = Number.parseInt(digits, 16)
  return size <= LARGEST_LENGTH ? size : -1
}

function consistsOf(text, characters) {
  for (var i = 0; i < text.length; i++) {
    if (characters.indexOf(text.charAt(i)) < 0) return false
  }
  return true
}

function readChunkEnd(reader, input, output) {
  if (input.size < 2) return false
  var end = input.shift(2).toArray()
  if (end[0] !== CR || end[1] !== LF) return fail(reader, 'an invalid chunk')
  output.push('\r\n')
  reader.state = SIZE
  return true
}

// readTrailer reads a line after the last chunk. The decoder does not know trailers: those of a
// request are kept in its description, those of an answer in the reader.
function readTrailer(reader, input, output) {
  var line = lineOf(input, LARGEST_LINE)
  if (line === undefined) return false
  if (line === '') {
    output.push('\r\n')
    complete(reader, HEAD)
    return true
  }
  var colon = line === null ? -1 : line.indexOf(':')
  reader.size += line === null ? 0 : line.length
  if (colon < 1 || !isToken(line.substring(0, colon)) || reader.size > LARGEST_HEAD) return fail(reader, 'an invalid trailer')
  var name = line.substring(0, colon).toLowerCase()
  if (!isTrailer(name)) return true
  var message = reader.ofRequests ? reader.current : reader
  if (!message.trailers) message.trailers = {}
  message.trailers[name] = line.substring(colon + 1).trim()
  return true
}

// endOfHead returns the size of the head at the beginning of the input, 0 if it is not
// complete, or -1 if a line does not end as it should.
function endOfHead(input) {
  var most = Math.min(input.size, USUAL_HEAD)
  var found = searchHead(new Data(input).shift(most).toArray())
  if (found !== 0 || most === input.size) return found
  return searchHead(new Data(input).shift(Math.min(input.size, LARGEST_HEAD + 1)).toArray())
}

// mayBeRequest reports whether the input, which has no complete head, may begin a request. What
// other protocols begin with is answered at once: their clients may wait for an answer.
function mayBeRequest(input) {
  var bytes = new Data(input).shift(Math.min(input.size, USUAL_HEAD)).toArray()
  if (bytes[0] === CR) return bytes.length === 1
  var space = bytes.indexOf(SPACE)
  var method = bytes.slice(0, space < 0 ? bytes.length : space)
  if (method.length > LARGEST_METHOD || method.some(c => c < SPACE || c >= 127)) return false
  var end = bytes.indexOf(LF)
  return end < 0 || plain(new Data(input).shift(end)).indexOf(' HTTP/') >= 0
}

// firstLine returns the first line of the input, or '' if it is not text.
function firstLine(input) {
  var bytes = new Data(input).shift(Math.min(input.size, LARGEST_LINE)).toArray()
  var end = bytes.indexOf(LF)
  var text = new Data(input).shift(end < 0 ? bytes.length : end).toString()
  return text === undefined ? '' : text.trim()
}

function searchHead(bytes) {
  var before = -1
  for (var end = bytes.indexOf(LF); end >= 0; end = bytes.indexOf(LF, end + 1)) {
    if (end === 0 || bytes[end - 1] !== CR) return -1
    if (end === before + 2) return end + 1
    before = end
  }
  return 0
}

function readHead(reader, input, output) {
  if (!reader.ofRequests && reader.idle) return fail(reader, 'data that no request has asked for')
  skipEmptyLines(reader, input)
  if (input.size === 0) return false
  var end = endOfHead(input)
  if (end === 0) {
    if (input.size > LARGEST_HEAD) return reject(reader, output, 431, 'the headers are too large', firstLine(input))
    if (reader.ofRequests && !mayBeRequest(input)) return refuse(reader, output, 400, 'not HTTP', '')
    return false
  }
  if (end < 0) return reject(reader, output, 400, 'a line that does not end in CR and LF', firstLine(input))
  if (end > LARGEST_HEAD) return reject(reader, output, 431, 'the headers are too large', firstLine(input))
  var raw = input.shift(end)
  var text = raw.toString()
  if (text === undefined) text = plain(raw)
  var lines = text.split('\r\n')
  if (text.split('\r').length !== lines.length || text.indexOf(nul) >= 0) return reject(reader, output, 400, 'a control character', lines[0])
  var head = { raw, lines, changed: false, length: undefined, chunked: false, encodings: 0, upgrade: '', connection: '', expects: false, host: false, fault: 0, text: '' }
  readFields(reader, head)
  if (head.fault) return reject(reader, output, head.fault, head.text, lines[0])
  return reader.ofRequests ? passRequest(reader, head, output) : passAnswer(reader, head, output)
}

// skipEmptyLines drops empty lines before a request, which some clients send.
function skipEmptyLines(reader, input) {
  for (var go = reader.ofRequests && input.size >= 2; go; go = go && input.size >= 2) {
    var first = new Data(input).shift(2).toArray()
    go = first[0] === CR && first[1] === LF
    if (go) input.shift(2)
  }
}

// plain returns the text of a head that is not valid UTF-8, with other bytes replaced.
function plain(raw) {
  var text = ''
  raw.toArray().forEach(c => void (text += c < 0x80 ? String.fromCharCode(c) : '?'))
  return text
}

function fault(head, status, text) {
  if (head.fault) return
  head.fault = status
  head.text = text
}

// readFields checks the header lines. Those of one name become one line; cookies are kept.
function readFields(reader, head) {
  var seen = {}
  var lines = head.lines
  if (lines[0].length > LARGEST_LINE) return fault(head, 431, 'the request line is too long')
  for (var i = 1; i < lines.length - 2; i++) {
    var line = lines[i]
    var colon = line.indexOf(':')
    if (line.length > LARGEST_LINE) return fault(head, 431, 'a header is too long')
    if (colon < 1 || !isToken(line.substring(0, colon))) return fault(head, 400, 'an invalid header')
    var name = line.substring(0, colon).toLowerCase()
    var before = seen[name]
    switch (name) {
      case 'content-length':
      case 'host':
      case 'transfer-encoding':
        if (before !== undefined) return fault(head, 400, `several headers ${name}`)
        readStructure(head, name, line.substring(colon + 1).trim(), i)
        break
      case 'connection':
        head.connection += ',' + line.substring(colon + 1).trim().toLowerCase()
        break
      case 'upgrade':
        head.upgrade = line.substring(colon + 1).trim().toLowerCase()
        if (reader.ofRequests) {
          lines[i] = null
          head.changed = true
        }
        break
      case 'expect':
        head.expects = line.substring(colon + 1).trim().toLowerCase() === '100-continue'
        break
    }
    if (isOwn(name)) {
      lines[i] = null
      head.changed = true
    } else if (before === undefined) {
      seen[name] = i
    } else if (name !== 'cookie' && name !== 'set-cookie' && lines[i] !== null) {
      lines[before] += ', ' + line.substring(colon + 1).trim()
      lines[i] = null
      head.changed = true
      if (lines[before].length > LARGEST_LINE) return fault(head, 431, 'a header is too long')
    }
  }
}

// readStructure reads a header that decides where the message ends or goes.
function readStructure(head, name, value, i) {
  switch (name) {
    case 'host':
      head.host = true
      break
    case 'content-length':
      if (value.length === 0 || value.length > 16 || !consistsOf(value, decimal)) fault(head, 400, 'an invalid content-length')
      head.length = Number.parseInt(value)
      if (head.length > LARGEST_LENGTH) fault(head, 413, 'the body is too long')
      break
    case 'transfer-encoding':
      if (value.toLowerCase() !== 'chunked') fault(head, 501, 'a transfer-encoding other than chunked')
      head.chunked = true
      head.lines[i] = 'transfer-encoding: chunked'
      head.changed = true
      break
  }
}

// push writes the head to the output.
function push(head, output) {
  if (head.changed) output.push(head.lines.filter(line => line !== null).join('\r\n'))
  else output.push(head.raw)
}

function passRequest(reader, head, output) {
  var line = head.lines[0]
  var parts = line.split(' ')
  if (line === 'PRI * HTTP/2.0') {
    reader.http2 = true
    reader.state = PASSED
    output.push(head.raw)
    return true
  }
  if (parts.length !== 3 || !isToken(parts[0]) || parts[1] === '') return refuse(reader, output, 400, 'an invalid request line', line)
  if (parts[2] !== 'HTTP/1.1' && parts[2] !== 'HTTP/1.0') return refuse(reader, output, 505, 'another version of HTTP', line)
  if (head.length !== undefined && head.chunked) return refuse(reader, output, 400, 'both a content-length and a transfer-encoding', line)
  if (head.chunked && parts[2] === 'HTTP/1.0') return refuse(reader, output, 400, 'a transfer-encoding in HTTP/1.0', line)
  var method = parts[0]
  if (method === 'HEAD' && (head.chunked || head.length > 0)) return refuse(reader, output, 400, 'a body of HEAD', line)
  if (!methods.includes(method)) {
    parts[0] = 'POST'
    head.lines[0] = parts.join(' ')
    head.changed = true
  }
  var empty = !head.chunked && !head.length
  var upgrades = head.upgrade === 'websocket' && empty && head.connection.indexOf('upgrade') >= 0
  if (upgrades) {
    // Before the two empty elements that end the head.
    head.lines.splice(head.lines.length - 2, 0, 'upgrade: websocket')
  }
  reader.current = { method, path: parts[1], expects: head.expects && !empty && parts[2] === 'HTTP/1.1', refused: null, trailers: null }
  reader.heads.push(reader.current)
  push(head, output)
  reader.left = head.length || 0
  reader.state = upgrades ? HELD : head.chunked ? SIZE : reader.left > 0 ? LENGTH : HEAD
  return !upgrades
}

// passAnswer passes on the head of an answer. The decoder takes interim answers, except for the
// switch to another protocol, only as 100; their text is kept.
function passAnswer(reader, head, output) {
  var line = head.lines[0]
  var status = Number.parseInt(line.substring(9, 12))
  if (!(line.startsWith('HTTP/1.1 ') || line.startsWith('HTTP/1.0 ')) || !consistsOf(line.substring(9, 12), decimal) || line.length > 12 && line.charAt(12) !== ' ' || !(status >= 100 && status <= 599)) {
    return fail(reader, 'an invalid answer')
  }
  if (status < 200 && status !== 101) {
    reader.interims.push(head.lines.filter(line => line !== null).join('\r\n'))
    output.push('HTTP/1.1 100 Continue\r\n\r\n')
    return true
  }
  if (line.length === 12) {
    // The decoder needs the space before the reason.
    head.lines[0] += ' '
    head.changed = true
  }
  if (status === 101) {
    push(head, output)
    reader.state = PASSED
    return true
  }
  var empty = reader.method === 'HEAD' || status === 204 || status === 304
  if (empty && reader.method !== 'HEAD' && head.length !== undefined) {
    // The decoder would wait for the body that the client already has.
    head.lines = head.lines.map(line => line !== null && line.toLowerCase().startsWith('content-length:') ? null : line)
    head.changed = true
    reader.length = head.length
  }
  if (head.chunked && head.length !== undefined && !empty) return fail(reader, 'both a content-length and a transfer-encoding')
  push(head, output)
  reader.left = head.length || 0
  var next = empty ? HEAD : head.chunked ? SIZE : head.length === undefined ? REST : reader.left > 0 ? LENGTH : HEAD
  complete(reader, next)
  return true
}
