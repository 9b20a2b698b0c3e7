// What the threads of the process know together. Each thread runs all of the program,
// with variables of its own and connections that the kernel gives it.
//
// A thread looks regularly for what others have left for it: nothing wakes it. With one
// thread nothing here costs more than a variable.

export var thread = pipy.thread.id
export var threads = pipy.thread.concurrency

// How often, in seconds, a thread looks for what others have left for it, in a hurry and
// otherwise.
export var TICK = 0.02
var IDLE_TICK = 0.1

var process = threads > 1 ? new algo.SharedMap('process') : new Map
// A program that is loaded anew begins anew, and does not meet the one before it, whose
// connections live on. Either all threads go on with what they have loaded or none does,
// and it is counted only then: what a thread of several could not load is the same
// number's next attempt.
var program = (process.get(`program/${thread}`) || 0) + 1
// The first thread is there before the others are started.
if (thread === 0 && program === 1) process.set('lock', true)
// This is done when Pipy runs the program.
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

// exclusive calls the function while no other thread is within exclusive, and returns
// what it returns. The function must be short, and not call what calls exclusive.
export function exclusive(f) {
  if (threads === 1) return f()
  // Only one thread finds the lock there to be deleted.
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

// newCount returns a number that threads may add to together. It is the thread's own
// until share says otherwise.
export function newCount(key) {
  return { key, own: 0, shared: false }
}

// newNote returns a value that threads may have together, which is an initial one until
// one of them writes another. It is the thread's own until share says otherwise.
export function newNote(key, initial) {
  return { key, own: initial, initial, shared: false, isNote: true }
}

// share has a count or a note be what all threads that share it have, or the thread's
// own again. A count comes with what the thread has added, and goes with it; a note that
// goes is the initial one. When the last thread goes, nothing is left.
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

// add adds to a count, or to a note that is a number, and returns what it comes to.
export function add(count, n) {
  count.own += n
  return count.shared ? map.add(count.key, n) : count.own
}

// reserve adds one to the count, unless that is more than the limit. No limit is
// undefined.
export function reserve(count, limit) {
  if (add(count, 1) > limit) {
    add(count, -1)
    return false
  }
  return true
}

// valueOf returns the value of a count or a note.
export function valueOf(what) {
  return what.shared ? map.get(what.key) : what.own
}

// write puts a value in the place of a note's.
export function write(note, value) {
  if (note.shared) map.set(note.key, value)
  else note.own = value
}

// tell leaves a value for the other threads, and told returns those of all.
export function tell(name, value) {
  map.set(`${name}/${thread}`, value)
}

export function told(name) {
  var all = []
  for (var i = 0; i < threads; i++) all.push(map.get(`${name}/${i}`))
  return all
}

// regularly has the function called again and again, if there are other threads. While
// it returns true there is hurry.
export function regularly(f) {
  if (threads === 1) return
  tasks.push(f)
  if (tasks.length === 1) tick()
}

// hurry has what is done regularly be done soon.
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
            console.error('what is done regularly:', (error && error.message) || `${error}`)
          }
        }
      )
      tick()
    }
  )
}
