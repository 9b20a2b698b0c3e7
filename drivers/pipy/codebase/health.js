// Health checks: a connection to each endpoint, with the TLS handshake but without data.
//
// A backend is checked while its document asks for it, from its first use on. In each
// interval one of the threads checks it, and all threads share the results.

import { identity } from './identity.js'
import { newSession, close, carry } from './session.js'
import { add, exclusive, valueOf, write } from './shared.js'

// The interval and the time limit of checks, in seconds.
var INTERVAL = 10, LIMIT = 5
// How many checks in a row must fail until an endpoint is unhealthy. One that succeeds
// makes it healthy.
var FAILURES = 3

var $session

// isChecked reports whether the backend's endpoints are checked.
export function isChecked(b) {
  return Boolean(b.document && b.document.healthChecks)
}

// isHealthy reports whether an endpoint of a checked backend may be used.
export function isHealthy(endpoint) {
  return valueOf(endpoint.missed) < FAILURES
}

// check checks the backend's endpoints regularly, as long as its document asks for it.
export function check(b) {
  if (b.checking) return
  b.checking = true
  checkNow(b)
}

function checkNow(b) {
  if (!isChecked(b)) {
    b.checking = false
    return
  }
  if (exclusive(() => isDue(b))) b.endpoints.forEach(endpoint => checkEndpoint(b, endpoint))
  new Timeout(INTERVAL).wait().then(() => checkNow(b))
}

// isDue reports whether no thread has checked the backend in this interval, and if so,
// records that this one does. Timers are not exact, and the clock may be set back.
function isDue(b) {
  var now = Date.now()
  if (Math.abs(now - valueOf(b.checked)) < INTERVAL * 900) return false
  write(b.checked, now)
  return true
}

function checkEndpoint(b, endpoint) {
  if (endpoint.serverName && !identity()) return
  var kind = b.document.protocol !== 'http' ? 'tcp' : b.document.http2 && !endpoint.http1 ? 'http2' : 'http1'
  var session = newSession(b, endpoint, kind, ended, close)
  connection.spawn(session)
  new Timeout(LIMIT).wait().then(() => close(session))
}

var connection = pipeline($=>$
  .onStart(
    function (session) {
      $session = session
      return new Data
    }
  )
  .pipe(carry, () => [$session])
)

// ended records the result of a check, whose connection has ended.
function ended(session) {
  var endpoint = session.endpoint
  if (endpoint.gone || !isChecked(session.backend)) return
  var changed = exclusive(
    function () {
      var before = isHealthy(endpoint)
      write(endpoint.missed, session.opened ? 0 : Math.min(valueOf(endpoint.missed) + 1, FAILURES))
      return isHealthy(endpoint) !== before
    }
  )
  if (changed) add(session.backend.turns, 1)
}
