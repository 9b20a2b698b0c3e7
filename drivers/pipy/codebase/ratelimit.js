// Limits of connections and requests, which each proxy keeps for itself.

import { matches } from './match.js'

// Buckets by what they limit. One whose limit has not changed is kept when documents
// change: else each change would let a burst pass.
var buckets = {}

// Takes a token of the bucket. It returns false if there is none.
export function take(name, limit) {
  var now = Date.now() / 1000
  var bucket = buckets[name]
  if (!bucket || bucket.size !== limit.size || bucket.tokens !== limit.tokens || bucket.interval !== limit.interval) {
    bucket = { size: limit.size, tokens: limit.tokens, interval: limit.interval, left: limit.size, filled: now }
    buckets[name] = bucket
  }
  var fills = Math.floor((now - bucket.filled) / bucket.interval)
  if (fills > 0) {
    bucket.left = Math.min(bucket.size, bucket.left + fills * bucket.tokens)
    bucket.filled += fills * bucket.interval
  } else if (fills < 0) {
    // The clock was set back.
    bucket.filled = now
  }
  if (bucket.left < 1) return false
  bucket.left--
  return true
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
