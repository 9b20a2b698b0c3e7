// Rate limits of connections and requests. Each proxy has its own.

import { exclusive, get, set } from './shared.js'
import { matches } from './match.js'

// Takes a token from the bucket. It returns false if there is none. When documents change,
// a bucket with the same limit keeps its tokens: otherwise each change would allow a burst.
export function take(name, limit) {
  return exclusive(() => takeOf(`bucket/${name}`, limit))
}

function takeOf(key, limit) {
  var now = Date.now() / 1000
  var bucket = get(key)
  if (!bucket || bucket.size !== limit.size || bucket.tokens !== limit.tokens || bucket.interval !== limit.interval) {
    bucket = { size: limit.size, tokens: limit.tokens, interval: limit.interval, left: limit.size, filled: now }
  }
  var fills = Math.floor((now - bucket.filled) / bucket.interval)
  if (fills > 0) {
    bucket.left = Math.min(bucket.size, bucket.left + fills * bucket.tokens)
    bucket.filled += fills * bucket.interval
  } else if (fills < 0) {
    // The clock was set back.
    bucket.filled = now
  }
  var taken = bucket.left >= 1
  if (taken) bucket.left--
  set(key, bucket)
  return taken
}

// Returns the limit of a port that the request exceeds, or null. Only the limit of the
// first route whose path matches is applied.
export function exceeded(number, port, request) {
  var routes = port.routeLimits || []
  var i = routes.findIndex(route => matches({ path: route.path }, request))
  if (i >= 0) return take(`${number}/route/${i}`, routes[i].limit) ? null : routes[i].limit
  var limit = port.requestLimit
  return !limit || take(`${number}/requests`, limit) ? null : limit
}
