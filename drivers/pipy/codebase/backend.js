// Backends: load balancing over their endpoints, outlier ejection, and limits of
// connections and requests. The state of an endpoint survives changes of the document.

import { backend, settings, onChange } from './config.js'
import { hostPort } from './address.js'
import { check, isChecked, isHealthy } from './health.js'
import { newSession, close } from './session.js'
import { TICK, newCount, newNote, share, add, reserve, valueOf, write, exclusive, regularly, hurry } from './shared.js'

var EJECTION_TIME = 30

// NEVER is the ejection state of an endpoint that was never ejected.
var NEVER = { times: 0, until: 0 }

// backends are keyed by name and created on first use.
var backends = {}

// pending counts the users that wait for a connection on all threads. crowd lists this
// thread's backends that have idle connections or waiting users, which may concern other
// threads.
var pending = newCount('pending')
var crowd = []

share(pending, true)

regularly(shareConnections)

onChange(
  function (names) {
    Object.values(backends).forEach(
      function (b) {
        var document = backend(b.name)
        if (document !== b.document || names['config/settings.json']) update(b, document)
      }
    )
  }
)

// backendOf returns the named backend, or null if there is none.
export function backendOf(name) {
  var b = backends[name]
  if (b) return b
  var document = backend(name)
  if (!document) return null
  backends[name] = newBackend(document)
  return backends[name]
}

// newBackend returns the backend of a document. Threads share its limits under the key,
// by default one made of the document's name.
export function newBackend(document, key) {
  key = key || `backend/${document.name}`
  var b = {
    name: document.name, key, document: null, policy: {},
    endpoints: [], usable: null, usableUntil: 0, usableSince: 0, next: newNote(`${key} next`, Math.floor(Math.random() * 1000)),
    connections: newCount(`${key} connections`), requests: newCount(`${key} requests`), retries: newCount(`${key} retries`),
    pending: newCount(`${key} pending`), waiting: [], crowded: false, yieldedUntil: 0,
    // How many endpoints have been ejected, or have become healthy or unhealthy.
    turns: newCount(`${key} turns`),
    // When the endpoints were checked last.
    checked: newNote(`${key} checked`, 0), checking: false,
  }
  update(b, document)
  return b
}

// update applies a new document; undefined means that the backend is gone.
function update(b, document) {
  var old = Object.fromEntries(b.endpoints.map(e => [e.key, e]))
  if (!document) delete backends[b.name]
  b.document = document
  b.policy = (document && document.policy) || {}
  b.endpoints = endpointsOf(document).map(
    function (e) {
      var key = `${e.address} ${e.serverName || ''}`
      var known = old[key]
      if (!known) known = newEndpoint(b, key)
      delete old[key]
      known.address = e.address
      known.serverName = e.serverName || ''
      known.zone = e.zone || ''
      known.draining = !!e.draining
      known.workload = e.workload || ''
      shareHealth(known, b.policy.ejection, isChecked(b))
      return known
    }
  )
  b.usable = null
  Object.values(old).forEach(
    function (e) {
      e.gone = true
      shareHealth(e, false, false)
      closeIdle(e)
    }
  )
  // State that no limit refers to need not be shared.
  var policy = b.policy
  share(b.next, isRoundRobin(policy) && b.endpoints.length > 1)
  share(b.connections, policy.maxConnections !== undefined)
  share(b.pending, policy.maxConnections !== undefined || policy.maxPendingRequests !== undefined)
  share(b.requests, policy.maxRequests !== undefined)
  share(b.retries, policy.maxRetries !== undefined)
  share(b.turns, policy.ejection || isChecked(b))
  share(b.checked, isChecked(b))
  if (isChecked(b)) check(b)
}

// forget stops sharing the state of a backend. Its current users go on with it.
export function forget(b) {
  [b.next, b.connections, b.pending, b.requests, b.retries, b.turns, b.checked].forEach(what => share(what, false))
  b.endpoints.forEach(e => shareHealth(e, false, false))
}

function newEndpoint(b, key) {
  var health = `${b.key} health ${key}`
  return {
    key, idle: { http1: [], http2: [], tcp: [] }, requests: 0,
    errors: newNote(`${health} errors`, 0), out: newNote(`${health} out`, NEVER), missed: newNote(`${health} missed`, 0),
  }
}

function shareHealth(endpoint, ejection, checks) {
  share(endpoint.errors, ejection)
  share(endpoint.out, ejection)
  share(endpoint.missed, checks)
}

function endpointsOf(document) {
  if (!document) return []
  if (document.externalName) return [{ address: hostPort(document.externalName, document.port) }]
  var endpoints = document.endpoints || []
  // A pod without mesh TLS can't reach endpoints by it.
  return settings()?.plaintext ? endpoints.map(e => ({ ...e, serverName: '' })) : endpoints
}

function closeIdle(endpoint) {
  Object.values(endpoint.idle).forEach(sessions => sessions.splice(0, sessions.length).forEach(close))
}

// pick returns one of the weighted backends at random, or undefined if there is none.
export function pick(backends) {
  var total = (backends || []).reduce((sum, b) => sum + b.weight, 0)
  var r = Math.random() * total
  return (backends || []).find(b => (r -= b.weight) < 0)
}

// weighted returns the name of one of the weighted backends, or ''.
export function weighted(backends) {
  var found = pick(backends)
  return found ? found.backend : ''
}

// choose returns the endpoint for a request or connection, or null if there is none. Hash
// is the affinity key, or undefined; endpoints in tried are chosen only if there are no
// others.
export function choose(b, hash, tried) {
  var candidates = usable(b)
  if (tried && tried.length > 0) {
    var others = candidates.filter(e => !tried.includes(e))
    if (others.length > 0) candidates = others
  }
  var n = candidates.length
  if (n === 0) return null
  if (n === 1) return candidates[0]
  switch (b.policy.loadBalancing) {
    case 'Random':
      return candidates[random(n)]
    case 'LeastRequest':
      var one = candidates[random(n)], other = candidates[random(n)]
      return other.requests < one.requests ? other : one
    case 'RingHash':
    case 'Maglev':
      return hash === undefined ? candidates[random(n)] : highest(candidates, hash)
  }
  return candidates[add(b.next, 1) % n]
}

function isRoundRobin(policy) {
  return !policy.loadBalancing || policy.loadBalancing === 'RoundRobin'
}

function random(n) {
  return Math.min(Math.floor(Math.random() * n), n - 1)
}

// highest chooses by rendezvous hashing: when an endpoint is added or removed, only the
// clients of that endpoint are sent elsewhere.
function highest(candidates, hash) {
  var best = null, most = -1
  candidates.forEach(
    function (e) {
      var score = algo.hash(`${hash} ${e.key}`)
      if (score > most) {
        most = score
        best = e
      }
    }
  )
  return best
}

// usable returns the endpoints for new clients: of the healthy ones those that are not
// ejected, if there are any, and of these those in the pod's own zone if it is preferred.
// Draining endpoints are used only if there are no others.
function usable(b) {
  var now = Date.now()
  var turns = valueOf(b.turns)
  if (b.usable && now < b.usableUntil && b.usableSince === turns) return b.usable
  var checked = isChecked(b) ? b.endpoints.filter(isHealthy) : b.endpoints
  var all = checked.filter(e => !e.draining)
  if (all.length === 0) all = checked
  var until = b.policy.ejection ? all.map(e => valueOf(e.out).until) : []
  var healthy = b.policy.ejection ? all.filter((e, i) => until[i] <= now) : all
  if (healthy.length === 0) healthy = all
  if (b.policy.preferZone && settings().zone) {
    var near = healthy.filter(e => e.zone === settings().zone)
    if (near.length > 0) healthy = near
  }
  b.usable = healthy
  b.usableSince = turns
  b.usableUntil = until.reduce((first, time) => time > now ? Math.min(first, time) : first, now + 3600000)
  return healthy
}

// takesNew reports whether an endpoint gets new requests, in whatever zone it is.
export function takesNew(b, endpoint) {
  if (endpoint.draining || isChecked(b) && !isHealthy(endpoint)) return false
  return !b.policy.ejection || valueOf(endpoint.out).until <= Date.now()
}

// observe records the outcome of a call to an endpoint, and ejects it after too many
// consecutive failures.
export function observe(b, endpoint, failed) {
  if (!b.policy.ejection || endpoint.gone) return
  if (!failed) {
    if (valueOf(endpoint.errors) > 0) write(endpoint.errors, 0)
  } else if (exclusive(() => countFailure(b, endpoint) && eject(b, endpoint))) {
    add(b.turns, 1)
  }
}

// countFailure counts a failure, and returns whether it is one too many.
function countFailure(b, endpoint) {
  var errors = valueOf(endpoint.errors) + 1
  var tooMany = errors >= b.policy.ejection.consecutiveErrors
  write(endpoint.errors, tooMany ? 0 : errors)
  return tooMany
}

// eject ejects an endpoint unless the limits forbid it, and returns whether it did.
function eject(b, endpoint) {
  var ejection = b.policy.ejection
  var now = Date.now()
  var before = valueOf(endpoint.out)
  if (before.until > now) return false
  var out = b.endpoints.filter(e => valueOf(e.out).until > now).length
  var most = b.endpoints.length * (ejection.maxPercent || 10) / 100
  // One ejection is always allowed: a percentage of few endpoints may be less than one.
  if (out > 0 && out + 1 > most) return false
  // An endpoint that fails again soon after its return stays ejected for longer.
  var base = (ejection.baseTime || EJECTION_TIME) * 1000
  var times = now - before.until > base * (before.times + 1) ? 1 : before.times + 1
  write(endpoint.out, { times, until: now + Math.min(base * times, Math.max(base, 300000)) })
  return true
}

// acquire requests an idle or new session with an endpoint for a user, which has the form
// {backend, endpoint, kind, alone, granted, ended}: granted(user, session) is called with the
// session, and ended(user, session) if it ends while the user has it. A user that is alone gets a
// new session, which it closes. If the backend may
// have no more connections, the user waits until one is free. acquire returns false if too
// many wait.
export function acquire(user) {
  var b = user.backend
  if (b.waiting.length === 0 && !othersWait(b) && give(user)) return true
  if (!reserve(b.pending, b.policy.maxPendingRequests)) return false
  add(pending, 1)
  b.waiting.push(user)
  joinCrowd(b)
  return true
}

// reached reports whether the count has reached the limit. An undefined limit is none.
export function reached(limit, count) {
  return limit !== undefined && count >= limit
}

// refuses reports whether a limit of 0 rejects every request. That includes the limit of
// pending requests: each request is pending until it has its connection.
export function refuses(policy) {
  return [policy.maxConnections, policy.maxRequests, policy.maxPendingRequests].includes(0)
}

// withdraw cancels the request of a user that is still waiting.
export function withdraw(user) {
  var b = user.backend
  var i = b.waiting.indexOf(user)
  if (i < 0) return
  b.waiting.splice(i, 1)
  endWait(b)
}

function endWait(b) {
  add(b.pending, -1)
  add(pending, -1)
}

// othersWait reports whether users on other threads wait for a connection.
function othersWait(b) {
  return b.connections.shared && valueOf(b.pending) > b.waiting.length
}

function joinCrowd(b) {
  if (b.crowded || !b.connections.shared) return
  b.crowded = true
  crowd.push(b)
  hurry()
}

// yields reports whether to leave a free connection to another thread: always if no user
// waits on this thread, otherwise from time to time.
function yields(b) {
  if (!othersWait(b)) return false
  var now = Date.now()
  if (b.waiting.length > 0 && now < b.yieldedUntil + 5000 * TICK) return false
  b.yieldedUntil = now + 2000 * TICK
  return true
}

// shareConnections exchanges connections with other threads: it gives up idle ones that
// they wait for, and serves the users that wait here. It returns whether there is anything
// to share.
function shareConnections() {
  if (crowd.length === 0) return false
  if (valueOf(pending) === 0) return true
  crowd = crowd.filter(
    function (b) {
      if (yields(b)) closeOneIdle(b)
      serveWaiting(b)
      b.crowded = b.waiting.length > 0 || b.endpoints.some(e => e.idle.http1.length + e.idle.http2.length > 0)
      return b.crowded
    }
  )
  return crowd.length > 0
}

function give(user) {
  var b = user.backend
  var idle = user.endpoint.idle[user.kind]
  for (var i = user.alone ? 0 : idle.length; i > 0; i--) {
    var session = idle.pop()
    if (session.state === 'open') return grant(user, session)
  }
  var most = b.policy.maxConnections
  if (!reserve(b.connections, most) && !(closeOneIdle(b) && reserve(b.connections, most))) return false
  return grant(user, newSession(b, user.endpoint, user.kind, sessionEnded))
}

function grant(user, session) {
  session.user = user
  user.granted(user, session)
  return true
}

function sessionEnded(session) {
  var b = session.backend
  add(b.connections, -1)
  var idle = session.endpoint.idle[session.kind]
  var i = idle.indexOf(session)
  if (i >= 0) idle.splice(i, 1)
  var user = session.user
  session.user = null
  if (user) user.ended(user, session)
  serveWaiting(b)
}

// closeOneIdle closes an idle session to make room for another. It returns false if none
// is idle.
function closeOneIdle(b) {
  var endpoint = b.endpoints.find(e => e.idle.http1.length + e.idle.http2.length > 0)
  if (!endpoint) return false
  var idle = endpoint.idle.http1.length > 0 ? endpoint.idle.http1 : endpoint.idle.http2
  close(idle.shift())
  return true
}

// release returns a session that can carry another exchange.
export function release(session) {
  var b = session.backend
  var most = b.policy.requestsPerConnection
  session.user = null
  if (session.state === 'ended') return
  if (session.endpoint.gone || session.watch.leaving || (most && session.uses >= most) || yields(b)) {
    close(session)
    return
  }
  session.endpoint.idle[session.kind].push(session)
  joinCrowd(b)
  serveWaiting(b)
}

function serveWaiting(b) {
  if (b.waiting.length === 0 || Date.now() < b.yieldedUntil) return
  for (var go = b.waiting.length > 0; go; go = go && b.waiting.length > 0) {
    var user = b.waiting.shift()
    if (!give(user)) {
      b.waiting.unshift(user)
      go = false
    } else {
      endWait(b)
    }
  }
}
