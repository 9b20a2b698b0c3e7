// Clients of a gateway, who are outside the mesh and not authenticated.

import { isInHead } from './framing.js'
import { isInHeaders } from './frames.js'
import { matchesHost } from './match.js'
import { listenerFor } from './termination.js'
import { consistsOf } from './request.js'

// How many seconds the head of a request may take, and nothing may be sent in either direction.
var HEAD = 30
export var IDLE = 3600
// How many clients there may be at a port, on all threads together, so that calls of backends have
// enough file descriptors.
export var MOST = 40000

// admit changes the headers of a request: the backend gets the client's address. It returns false
// for names that many applications do not distinguish from others.
export function admit(connection, head) {
  var headers = head.headers
  if (Object.keys(headers).some(name => name.indexOf('_') >= 0)) return false
  var before = headers['x-forwarded-for']
  if (before instanceof Array) before = before.join(', ')
  headers['x-forwarded-for'] = before ? `${before}, ${connection.peer}` : connection.peer
  headers['x-forwarded-proto'] = connection.listener ? 'https' : 'http'
  return true
}

// isMisdirected reports whether a request is for a host of another listener than that of its connection.
export function isMisdirected(destination, connection, host) {
  if (!connection.listener || !destination.listeners || destination.listeners.length < 2) return false
  var found = entryFor(destination, host)
  var listener = found ? listenerFor(destination, found.host) : undefined
  return listener !== undefined && listener !== connection.listener
}

// isPlainHost reports whether the host of a request is a name or an address: Go's mesh.PlainHost. A
// wildcard would include others.
export function isPlainHost(host) {
  if (!host) return true
  var bracket = host.charAt(0) === '[' ? host.indexOf(']') : -1
  var colon = host.indexOf(':', bracket + 1)
  var name = colon < 0 ? host : host.substring(0, colon)
  if (colon >= 0 && !consistsOf(host.substring(colon + 1), digits)) return false
  if (bracket < 0) return consistsOf(name, letters)
  return bracket > 1 && name.length === bracket + 1 && consistsOf(name.substring(1, bracket), hexadecimal)
}

var digits = '0123456789'
var hexadecimal = digits + 'abcdefABCDEF:.'
var letters = digits + 'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-'

// routesFor returns the routes of a destination for requests with a host: of a gateway, those of the
// first of its hosts that matches. A port and a final dot make no difference.
export function routesFor(destination, host) {
  if (!destination.hosts) return destination.routes || nothing
  var found = entryFor(destination, host)
  return found ? found.routes : nothing
}

// entryFor returns what is known of the host of a destination to which the host of a request belongs.
function entryFor(destination, host) {
  var byHost = destination.byHost || (destination.byHost = indexHosts(destination))
  var name = withoutPort(host).toLowerCase()
  if (name.endsWith('.')) name = name.substring(0, name.length - 1)
  return byHost.exact.get(name) || byHost.others.find(o => o.host === '*' || matchesHost(o.host, name))
}

// indexHosts returns what is known of a destination's hosts. Exact ones come first in any case.
function indexHosts(destination) {
  var all = new Map, exact = new Map, others = []
  destination.hosts.forEach(
    function (host) {
      var entry = { host, routes: [] }
      all.set(host, entry)
      if (host.startsWith('*')) others.push(entry)
      else if (host) exact.set(host.toLowerCase(), entry)
    }
  )
  var routes = destination.routes || nothing
  routes.forEach(
    function (route) {
      var entry = all.get(route.host || '')
      if (entry) entry.routes.push(route)
    }
  )
  return { exact, others }
}

function withoutPort(host) {
  var at = host.lastIndexOf(':')
  return at >= 0 && at === host.indexOf(':') ? host.substring(0, at) : host
}

// slow resolves to the end of a connection whose client takes too long.
export function slow(connection) {
  return new Promise(settle => void (connection.end = settle)).catch(() => nothing)
}

var nothing = []

// timeHead is called with each part that a client has sent.
export function timeHead(connection) {
  var waits = connection.reader.http2 ? isInHeaders(connection.watch) : isInHead(connection.reader)
  if (!waits) return stopTiming(connection)
  if (connection.timer) return
  connection.timer = new Timeout(HEAD)
  connection.timer.wait().then(() => connection.end && connection.end(new StreamEnd('ReadTimeout'))).catch(() => undefined)
}

// release ends the timing of a connection that is over. Its timer would keep it in memory.
export function release(connection) {
  connection.end = null
  stopTiming(connection)
}

function stopTiming(connection) {
  var timer = connection.timer
  connection.timer = null
  if (timer) timer.cancel()
}
