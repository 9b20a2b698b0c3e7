// Backends: their endpoints, which of them work, and what may be asked of them at a
// time. What is known of an endpoint outlives changes of the document.

import { backend, settings, onChange } from './config.js'
import { hostPort } from './address.js'
import { newSession, close } from './session.js'

var EJECTION_TIME = 30

// backends are by name, as they are first asked for.
var backends = {}

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

// backendOf returns the backend of the name, or null if there is none.
export function backendOf(name) {
  var b = backends[name]
  if (b) return b
  var document = backend(name)
  if (!document) return null
  backends[name] = newBackend(document)
  return backends[name]
}

// newBackend returns a backend that is used as the document has it.
export function newBackend(document) {
  var b = {
    name: document.name, document: null, policy: {},
    endpoints: [], usable: null, usableUntil: 0, next: Math.floor(Math.random() * 1000),
    connections: 0, requests: 0, retries: 0, waiting: [],
  }
  update(b, document)
  return b
}

// update takes up the document; undefined means that the backend is gone.
function update(b, document) {
  var old = Object.fromEntries(b.endpoints.map(e => [e.key, e]))
  if (!document) delete backends[b.name]
  b.document = document
  b.policy = (document && document.policy) || {}
  b.endpoints = endpointsOf(document).map(
    function (e) {
      var key = `${e.address} ${e.serverName || ''}`
      var known = old[key]
      if (!known) known = { key, idle: { http1: [], http2: [], tcp: [] }, requests: 0, errors: 0, ejections: 0, ejectedUntil: 0 }
      delete old[key]
      known.address = e.address
      known.serverName = e.serverName || ''
      known.zone = e.zone || ''
      known.draining = !!e.draining
      known.workload = e.workload || ''
      if (!b.policy.ejection) known.ejectedUntil = 0
      return known
    }
  )
  b.usable = null
  Object.values(old).forEach(
    function (e) {
      e.gone = true
      closeIdle(e)
    }
  )
}

function endpointsOf(document) {
  if (!document) return []
  if (document.externalName) return [{ address: hostPort(document.externalName, document.port) }]
  var endpoints = document.endpoints || []
  // A pod that speaks no mesh TLS is not understood by those who ask for it.
  return settings()?.plaintext ? endpoints.map(e => ({ ...e, serverName: '' })) : endpoints
}

function closeIdle(endpoint) {
  Object.values(endpoint.idle).forEach(sessions => sessions.splice(0, sessions.length).forEach(close))
}

// weighted returns the name of one of the backends by their weights, or ''.
export function weighted(backends) {
  var total = (backends || []).reduce((sum, b) => sum + b.weight, 0)
  var r = Math.random() * total
  var found = (backends || []).find(b => (r -= b.weight) < 0)
  return found ? found.backend : ''
}

// choose returns the endpoint for a request or connection, or null if there is none.
// Hash, if it is not undefined, tells clients apart, and tried are the endpoints not to
// take again if there are others.
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
  b.next = (b.next + 1) % n
  return candidates[b.next]
}

function random(n) {
  return Math.min(Math.floor(Math.random() * n), n - 1)
}

// highest chooses by rendezvous hashing: when an endpoint comes or goes, only those
// who are sent to it, or were, have another than before.
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

// usable returns the endpoints that take new clients: those that work if there are
// any, and of these those in the own zone if they are preferred. Those that drain are
// taken when there are no others.
function usable(b) {
  var now = Date.now()
  if (b.usable && now < b.usableUntil) return b.usable
  var all = b.endpoints.filter(e => !e.draining)
  if (all.length === 0) all = b.endpoints
  var fine = all.filter(e => e.ejectedUntil <= now)
  if (fine.length === 0) fine = all
  if (b.policy.preferZone && settings().zone) {
    var near = fine.filter(e => e.zone === settings().zone)
    if (near.length > 0) fine = near
  }
  b.usable = fine
  b.usableUntil = all.reduce((until, e) => e.ejectedUntil > now ? Math.min(until, e.ejectedUntil) : until, now + 3600000)
  return fine
}

// observe notes how an endpoint answered, and ejects it when it fails too often in a
// row.
export function observe(b, endpoint, failed) {
  var ejection = b.policy.ejection
  if (!failed) {
    endpoint.errors = 0
    return
  }
  endpoint.errors++
  if (!ejection || endpoint.errors < ejection.consecutiveErrors) return
  endpoint.errors = 0
  var now = Date.now()
  if (endpoint.ejectedUntil > now) return
  var out = b.endpoints.filter(e => e.ejectedUntil > now).length
  var most = b.endpoints.length * (ejection.maxPercent || 10) / 100
  // A share of few endpoints is none, and then there would be no ejection.
  if (out > 0 && out + 1 > most) return
  // Who failed again soon after it came back stays away for longer.
  var base = (ejection.baseTime || EJECTION_TIME) * 1000
  if (now - endpoint.ejectedUntil > base * (endpoint.ejections + 1)) endpoint.ejections = 0
  endpoint.ejections++
  endpoint.ejectedUntil = now + Math.min(base * endpoint.ejections, Math.max(base, 300000))
  b.usable = null
}

// acquire asks for a session with the endpoint for a user: one that is idle, or a new
// one. The user is {backend, endpoint, kind, granted, ended}: granted(user, session) is
// called with the session, and ended(user, session) when it ends while the user has it.
// If the backend may have no more connections, that is put off until one is free.
// acquire returns false if too many wait.
export function acquire(user) {
  var b = user.backend
  if (b.waiting.length === 0 && give(user)) return true
  if (reached(b.policy.maxPendingRequests, b.waiting.length)) return false
  b.waiting.push(user)
  return true
}

// reached reports whether there may be no more than the count. No limit is undefined.
export function reached(limit, count) {
  return limit !== undefined && count >= limit
}

// refuses reports whether a limit of 0 lets no request through: that of requests that
// wait too, for each waits until its connection is there.
export function refuses(policy) {
  return [policy.maxConnections, policy.maxRequests, policy.maxPendingRequests].includes(0)
}

// withdraw takes back what was asked for and not given yet.
export function withdraw(user) {
  var waiting = user.backend.waiting
  var i = waiting.indexOf(user)
  if (i >= 0) waiting.splice(i, 1)
}

function give(user) {
  var b = user.backend
  var idle = user.endpoint.idle[user.kind]
  for (var i = idle.length; i > 0; i--) {
    var session = idle.pop()
    if (session.state === 'open') return grant(user, session)
  }
  if (reached(b.policy.maxConnections, b.connections) && !closeOneIdle(b)) return false
  b.connections++
  return grant(user, newSession(b, user.endpoint, user.kind, sessionEnded))
}

function grant(user, session) {
  session.user = user
  user.granted(user, session)
  return true
}

function sessionEnded(session) {
  var b = session.backend
  b.connections--
  var idle = session.endpoint.idle[session.kind]
  var i = idle.indexOf(session)
  if (i >= 0) idle.splice(i, 1)
  var user = session.user
  session.user = null
  if (user) user.ended(user, session)
  serveWaiting(b)
}

// closeOneIdle makes room for another connection.
function closeOneIdle(b) {
  var endpoint = b.endpoints.find(e => e.idle.http1.length + e.idle.http2.length > 0)
  if (!endpoint) return false
  var idle = endpoint.idle.http1.length > 0 ? endpoint.idle.http1 : endpoint.idle.http2
  close(idle.shift())
  return b.connections < b.policy.maxConnections
}

// release takes a session back that is good for another exchange.
export function release(session) {
  var b = session.backend
  var most = b.policy.requestsPerConnection
  session.user = null
  if (session.state === 'ended') return
  if (session.endpoint.gone || (most && session.uses >= most)) {
    close(session)
    return
  }
  session.endpoint.idle[session.kind].push(session)
  serveWaiting(b)
}

function serveWaiting(b) {
  for (var go = b.waiting.length > 0; go; go = go && b.waiting.length > 0) {
    var user = b.waiting.shift()
    if (!give(user)) {
      b.waiting.unshift(user)
      go = false
    }
  }
}
