// Limits of connections and requests, which each proxy keeps for itself.

import { exclusive, get, set } from './shared.js'
import { matches } from './match.js'

// Buckets by what they limit. One whose limit has not changed is kept when documents
// change: else each change would let a burst pass.

// Takes a token of the bucket. It returns false if there is none.
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
  var some = bucket.left >= 1
  if (some) bucket.left--
  set(key, bucket)
  return some
}

// Returns the limit of a port that the request exceeds, or null. The first route whose
// path matches is the only limit that counts.
export function exceeded(number, port, request) {
  var routes = port.routeLimits || []
  var i = routes.findIndex(route => matches({ path: route.path }, request))
  if (i >= 0) return take(`${number}/route/${i}`, routes[i].limit) ? null : routes[i].limit
  var limit = port.requestLimit
  return !limit || take(`${number}/requests`, limit) ? null : limit
}
