// Cut messages of HTTP/2. Pipy's decoder ends a message in the same way when its stream is
// reset as when it is complete, so the frames of a connection are watched before it reads
// them.

var RST_STREAM = 3
var FRAME_HEAD = 9
var PREFACE = 24

// newWatch returns a watch of what a client (true) or a server sends.
export function newWatch(ofClient) {
  return { skip: ofClient ? PREFACE : 0, head: null, marks: [], cut: false }
}

// watch returns the data, with each frame that resets a stream in an event of its own.
export function watch(w, data) {
  if (data.size === 0) return mark(w, data)
  if (data.size <= w.skip && !w.head) {
    w.skip -= data.size
    return mark(w, data)
  }
  var input = w.head ? w.head.push(data) : new Data(data)
  var events = []
  var passed = new Data
  w.head = null
  for (var go = input.size > 0; go; go = go && input.size > 0) {
    if (w.skip > 0) {
      var part = input.shift(Math.min(w.skip, input.size))
      w.skip -= part.size
      passed.push(part)
    } else if (input.size < FRAME_HEAD) {
      w.head = input
      go = false
    } else {
      var head = input.shift(FRAME_HEAD)
      var bytes = head.toArray()
      var size = bytes[0] * 65536 + bytes[1] * 256 + bytes[2]
      if (bytes[3] !== RST_STREAM || size > 4) {
        passed.push(head)
        w.skip = size
      } else if (input.size < size) {
        w.head = head.push(input)
        go = false
      } else {
        if (passed.size > 0) add(w, events, passed, false)
        add(w, events, head.push(input.shift(size)), true)
        passed = new Data
      }
    }
  }
  if (events.length === 0) return passed.size > 0 ? mark(w, passed) : undefined
  if (passed.size > 0) add(w, events, passed, false)
  return events
}

function add(w, events, data, resets) {
  events.push(data)
  w.marks.push(resets)
}

function mark(w, data) {
  if (w.marks.length > 0) w.marks.push(false)
  return data
}

// pass is called with each event of watch() before the decoder gets it. While the decoder
// handles a reset, "cut" is set.
export function pass(w) {
  w.cut = w.marks.length > 0 && w.marks.shift()
}
