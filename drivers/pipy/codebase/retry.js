// Retries: which requests are sent again, and when. Conditions have Envoy's names.

import { reached } from './backend.js'
import { valueOf } from './shared.js'

// How often a request that no server has seen is sent again without a retry policy.
var UNSEEN = 2
// The default base interval between retries, in seconds.
var BACKOFF = 0.025

var idempotent = ['GET', 'HEAD', 'OPTIONS', 'TRACE', 'PUT', 'DELETE']

// The retry conditions that apply to the outcome of a try without an answer. It is "stale"
// if a reused connection ended without an answer.
var conditions = {
  unreachable: ['5xx', 'gateway-error', 'reset', 'connect-failure'],
  stale: ['5xx', 'gateway-error', 'reset'],
  reset: ['5xx', 'gateway-error', 'reset'],
  timeout: ['5xx', 'gateway-error', 'reset'],
}

var grpcStatuses = { '1': 'cancelled', '4': 'deadline-exceeded', '8': 'resource-exhausted', '13': 'internal', '14': 'unavailable' }

// isRetriable reports whether to retry instead of passing on an answer with the head.
export function isRetriable(request, t, head) {
  var retry = request.options.retry
  if (!retry || !isRepeatable(request) || !mayRetry(request, t)) return false
  var status = head.status
  if (retry.codes && retry.codes.includes(status)) return true
  return retry.on.some(
    function (on) {
      switch (on) {
        case '5xx':
          return status >= 500
        case 'gateway-error':
          return status >= 502 && status <= 504
        case 'retriable-4xx':
          return status === 409
      }
      return grpcStatuses[head.headers['grpc-status']] === on
    }
  )
}

// retryDelay returns after how many seconds to retry a request whose try has failed, or -1
// if it is not retried.
export function retryDelay(request, t) {
  if (!isRepeatable(request)) return -1
  var retry = request.options.retry
  if (retry && (t.outcome === 'status' || retriesOn(retry, t.outcome)) && mayRetry(request, t)) {
    request.retries++
    var base = retry.backoff || BACKOFF
    return Math.random() * Math.min(base * (Math.pow(2, request.retries) - 1), base * 10)
  }
  var unseen = t.outcome === 'unreachable' || (t.outcome === 'stale' && idempotent.includes(request.head.method))
  if (!unseen || request.unseen >= UNSEEN) return -1
  request.unseen++
  return 0
}

function isRepeatable(request) {
  return request.kept && !request.expired && !request.upgrade
}

function mayRetry(request, t) {
  return request.retries < request.options.retry.attempts && !(t.backend && reached(t.backend.policy.maxRetries, valueOf(t.backend.retries)))
}

function retriesOn(retry, outcome) {
  var wanted = conditions[outcome]
  return wanted ? retry.on.some(on => wanted.includes(on)) : false
}
