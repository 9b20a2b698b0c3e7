// State that the threads of the process share. Each thread runs the whole program, with
// its own variables and the connections that the kernel assigns to it.
//
// A thread polls for what others have published, since nothing can wake it. With a single
// thread everything here costs no more than a variable.

export var thread = pipy.thread.id
export var threads = pipy.thread.concurrency

// The polling intervals in seconds: in a hurry, and otherwise.
export var TICK = 0.02
var IDLE_TICK = 0.1

var process = threads > 1 ? new algo.SharedMap('process') : new Map
// Each reload of the program starts with new state, separate from its predecessor's, whose
// connections live on. Either all threads switch to what they have loaded or none does,
// and the number counts only successful reloads: after a failed one the next attempt gets
// the same number.
var program = (process.get(`program/${thread}`) || 0) + 1
// The first thread runs before the others are started.
if (thread === 0 && program === 1) process.set('lock', true)
// This runs only if Pipy switches to the program.
Promise.resolve().then(() => process.set(`program/${thread}`, program))
var map = threads > 1 ? new algo.SharedMap(`program/${program}`) : new Map

var tasks = []
var pause = null
var hurried = false

export function get(key) {
  return map.get(key)
}

export function set(key, value) {
  map.set(key, value)
}

export function drop(key) {
  map.delete(key)
}

// exclusive calls the function while it holds a lock of all threads, and returns its
// result. The function must be short, and nothing in it may call exclusive.
export function exclusive(f) {
  if (threads === 1) return f()
  // Only one thread succeeds in deleting the lock.
  for (var held = process.delete('lock'); !held; held = process.delete('lock')) void 0
  var result = undefined
  try {
    result = f()
  } catch (error) {
    process.set('lock', true)
    throw error
  }
  process.set('lock', true)
  return result
}

// newCount returns a counter. It belongs to the thread until it is shared.
export function newCount(key) {
  return { key, own: 0, shared: false }
}

// newNote returns a variable with an initial value. It belongs to the thread until it is
// shared.
export function newNote(key, initial) {
  return { key, own: initial, initial, shared: false, isNote: true }
}

// share turns sharing of a counter or a variable on or off. A shared counter is the sum of
// what each sharing thread has added; a thread that stops sharing takes its part away. A
// variable that is no longer shared has its initial value. When the last thread stops
// sharing, no shared state remains.
export function share(what, shared) {
  if (what.isNote && !shared) what.own = what.initial
  shared = Boolean(shared) && threads > 1
  if (what.shared === shared) return
  what.shared = shared
  exclusive(() => shared ? join(what) : part(what))
}

function join(what) {
  var sharers = `${what.key} sharers`
  var n = map.get(sharers) || 0
  map.set(sharers, n + 1)
  if (what.isNote) {
    if (n === 0) map.set(what.key, what.own)
  } else {
    map.set(what.key, (n > 0 ? map.get(what.key) : 0) + what.own)
  }
}

function part(what) {
  var sharers = `${what.key} sharers`
  var n = map.get(sharers) - 1
  if (n > 0) {
    map.set(sharers, n)
    if (!what.isNote) map.add(what.key, -what.own)
  } else {
    map.delete(sharers)
    map.delete(what.key)
  }
}

// add adds to a counter or a numeric variable and returns the sum.
export function add(count, n) {
  count.own += n
  return count.shared ? map.add(count.key, n) : count.own
}

// reserve increments the counter and returns true, unless that would exceed the limit.
// An undefined limit is no limit.
export function reserve(count, limit) {
  if (add(count, 1) > limit) {
    add(count, -1)
    return false
  }
  return true
}

// valueOf returns the value of a counter or a variable.
export function valueOf(what) {
  return what.shared ? map.get(what.key) : what.own
}

// write sets the value of a variable.
export function write(note, value) {
  if (note.shared) map.set(note.key, value)
  else note.own = value
}

// publish publishes a value of this thread, and published returns the values of all
// threads.
export function publish(name, value) {
  map.set(`${name}/${thread}`, value)
}

export function published(name) {
  var all = []
  for (var i = 0; i < threads; i++) all.push(map.get(`${name}/${i}`))
  return all
}

// regularly calls the function at intervals, if there are other threads. After it has
// returned true, the next interval is short.
export function regularly(f) {
  if (threads === 1) return
  tasks.push(f)
  if (tasks.length === 1) tick()
}

// hurry makes the next interval a short one.
export function hurry() {
  if (!pause || hurried) return
  hurried = true
  pause.cancel()
}

function tick() {
  pause = new Timeout(hurried ? TICK : IDLE_TICK)
  pause.wait().catch(() => new Timeout(TICK).wait()).then(
    function () {
      hurried = false
      tasks.forEach(
        function (f) {
          try {
            if (f()) hurried = true
          } catch (error) {
            console.error('a periodic task failed:', (error && error.message) || `${error}`)
          }
        }
      )
      tick()
    }
  )
}
