// Cut messages of HTTP/2. Pipy's decoder ends a message in the same way when its stream is
// reset, its connection ends, or a frame cannot be read, as when it is complete, so the frames of
// a connection are watched before it reads them. It also ends all messages of a connection whose
// peer announces that it will take no more of them, so it does not see such a GOAWAY.

var DATA = 0
var HEADERS = 1
var END_STREAM = 1
var END_HEADERS = 4
var RST_STREAM = 3
var GOAWAY = 7
var CONTINUATION = 9
var FRAME_HEAD = 9
var MAX_FRAME = 16384
var PREFACE = 24

// What a client has sent of the headers of a message: all of them, all but the rest of the
// last frame, or not the last frame.
var COMPLETE = 0, LAST = 1, MORE = 2

// newWatch returns a watch of what a client (true) or a server sends. A client's resets are marked:
// while the decoder handles one, "cut" is set. "leaving" is set once the peer takes no more
// streams.
export function newWatch(ofClient) {
  return { skip: ofClient ? PREFACE : 0, head: null, marks: ofClient ? [] : null, cut: false, stream: 0, block: COMPLETE, ending: false, ended: false, leaving: false }
}

// watchStream watches the next stream of a server, which must be the only one. "ended" is set once
// the server has sent all of it.
export function watchStream(w, stream) {
  w.stream = stream
  w.ended = false
}

// watch returns the data, with each frame that resets a client's stream in an event of its own, and
// without a GOAWAY that lets the streams of the connection end.
export function watch(w, data) {
  if (data.size === 0) return mark(w, data)
  if (data.size <= w.skip && !w.head) {
    skipped(w, data.size)
    return mark(w, data)
  }
  var input = w.head ? w.head.push(data) : new Data(data)
  var events = []
  var passed = new Data
  w.head = null
  for (var go = input.size > 0; go; go = go && input.size > 0) {
    if (w.skip > 0) {
      var part = input.shift(Math.min(w.skip, input.size))
      skipped(w, part.size)
      passed.push(part)
    } else if (input.size < FRAME_HEAD) {
      w.head = input
      go = false
    } else {
      var head = input.shift(FRAME_HEAD)
      var bytes = head.toArray()
      var size = bytes[0] * 65536 + bytes[1] * 256 + bytes[2]
      if (!isWatched(w, bytes[3], size)) {
        passed.push(head)
        w.skip = size
        if (bytes[3] === HEADERS || bytes[3] === CONTINUATION) w.block = bytes[4] % (2 * END_HEADERS) < END_HEADERS ? MORE : LAST
        else if (w.block === LAST) w.block = COMPLETE
        w.ending = endsStream(w, bytes)
        skipped(w, 0)
      } else if (input.size < size) {
        w.head = head.push(input)
        go = false
      } else {
        var payload = input.shift(size)
        var cuts = bytes[3] === RST_STREAM || leaves(w, payload.toArray())
        if (cuts && !w.marks) {
          passed.push(head.push(payload))
        } else if (cuts) {
          if (passed.size > 0) add(w, events, passed, false)
          add(w, events, head.push(payload), true)
          passed = new Data
        }
      }
    }
  }
  if (events.length === 0) return passed.size > 0 ? mark(w, passed) : undefined
  if (passed.size > 0) add(w, events, passed, false)
  return events
}

// isInHeaders reports whether a frame's head, or the headers of a message, have begun and are not
// complete.
export function isInHeaders(w) {
  return w.head !== null || w.block === MORE || w.block === LAST && w.skip > 0
}

// endsStream reports whether a frame is the last one of the stream, by its head.
function endsStream(w, head) {
  if (head[3] !== DATA && head[3] !== HEADERS || head[4] % 2 !== END_STREAM) return false
  return head[5] % 128 * 16777216 + head[6] * 65536 + head[7] * 256 + head[8] === w.stream
}

// skipped counts the bytes of a frame. A stream ends with the last byte of its last frame.
function skipped(w, size) {
  w.skip -= size
  if (w.skip > 0 || !w.ending) return
  w.ending = false
  w.ended = true
}

function isWatched(w, type, size) {
  return type === RST_STREAM && size <= 4 && w.marks || type === GOAWAY && size <= MAX_FRAME
}

// leaves notes a GOAWAY, and reports whether it ends the last stream: because of an error, or
// because the peer has not read the start of that stream.
function leaves(w, payload) {
  if (payload.length < 8) return true
  var last = payload[0] % 128 * 16777216 + payload[1] * 65536 + payload[2] * 256 + payload[3]
  w.leaving = true
  return payload[4] + payload[5] + payload[6] + payload[7] > 0 || last < w.stream
}

function add(w, events, data, resets) {
  events.push(data)
  w.marks.push(resets)
}

function mark(w, data) {
  if (w.marks && w.marks.length > 0) w.marks.push(false)
  return data
}

// pass is called with each event of a client's watch() before the decoder gets it.
export function pass(w) {
  w.cut = w.marks.length > 0 && w.marks.shift()
}
