// Calls to destinations outside the mesh: by host, by server name, or by address.
//
// A connection that is allowed by host goes to the addresses that the host's name resolves
// to, not to the one that the application chose: otherwise an allowed name would give
// access to any address. One that is allowed by host and address range goes to the chosen
// address.

import { egress, onChange } from './config.js'
import { newBackend, forget } from './backend.js'
import { hostPort } from './address.js'
import { matches, matchesHost } from './match.js'

var digits = '0123456789'
var nameCharacters = digits + 'abcdefghijklmnopqrstuvwxyz-_.'

// How many backends outside the mesh are cached.
var MOST = 1000

// backends caches the backends outside the mesh by key, and masks the parsed address
// ranges.
var backends = new Map
var masks = {}

onChange(
  function (names) {
    if (!names['config/egress.json']) return
    forgetAll()
    masks = {}
  }
)

// kindOf returns how a connection to an address outside the mesh is handled: "http" and
// "tls" inspect it, "passthrough" connects to the address, and "closed" closes it.
export function kindOf(to) {
  var document = egress()
  if (!document) return 'closed'
  var port = document.ports && document.ports[`${to.port}`]
  if (port) {
    var within = port.ranges || []
    if (within.length > 0 ? isIn(within, to.address) : port.protocol === 'tcp') return 'passthrough'
    if (port.hosts && port.hosts.length > 0 && (port.protocol === 'http' || port.protocol === 'tls')) return port.protocol
  }
  return document.allowAll ? 'passthrough' : 'closed'
}

// hasUnknown reports whether this proxy does not know all destinations of the mesh.
export function hasUnknown() {
  return (egress()?.unknown || []).length > 0
}

// isUnknown reports whether there may be a destination of the mesh at an address that this
// proxy does not know.
export function isUnknown(to) {
  return isIn(egress()?.unknown || [], to.address)
}

// isIn reports whether an address is in one of the ranges.
function isIn(ranges, address) {
  return ranges.some(
    function (text) {
      if (!masks[text]) masks[text] = new IPMask(text)
      return masks[text].contains(address)
    }
  )
}

// passthrough returns the backend of an original destination.
export function passthrough(to) {
  var address = hostPort(to.address, to.port)
  return cached(`passthrough/${address}`, () => ({ name: 'passthrough', endpoints: [{ address }] }))
}

// serverBackend returns the backend for a TLS connection with the server name, which may
// be '', or null if it is not allowed.
export function serverBackend(to, serverName) {
  var found = hostOf(to.port, serverName)
  if (found) return backendTo(found, serverName, to, m => m.length > 0)
  return egress().allowAll ? passthrough(to) : null
}

// requestBackend returns {backend, timeout} for a request, or null if it is not allowed.
export function requestBackend(to, request) {
  var name = nameOf(request.host)
  var found = hostOf(to.port, name.host)
  // With a wildcard the request determines the host to connect to, by default at port 80.
  if (found && (name.port === to.port || (!name.port && (to.port === 80 || !isWildcard(found.host))))) {
    var backend = backendTo(found, name.host, to, list => list.some(m => matches(m, request)))
    return backend ? { backend, timeout: (found.policy || {}).requestTimeout } : null
  }
  return egress().allowAll ? { backend: passthrough(to), timeout: 0 } : null
}

// nameOf splits a Host header.
function nameOf(host) {
  var at = host.lastIndexOf(':')
  if (at < 0) return { host: hostName(host), port: 0 }
  return { host: hostName(host.substring(0, at)), port: Number.parseInt(host.substring(at + 1)) }
}

// hostName returns a host name that can be resolved, in lower case, or '' for anything
// else, also for an IP address. Pipy's resolver stops at a NUL: the name that is compared
// must be the one that is resolved. A final dot means the same name.
export function hostName(text) {
  var name = `${text || ''}`.toLowerCase()
  if (name.charAt(name.length - 1) === '.') name = name.substring(0, name.length - 1)
  if (name.length === 0 || name.length > 253) return ''
  for (var i = 0; i < name.length; i++) {
    if (nameCharacters.indexOf(name.charAt(i)) < 0) return ''
  }
  return digits.indexOf(name.charAt(name.lastIndexOf('.') + 1)) >= 0 ? '' : name
}

// hostOf returns the entry for a host name at a port, or null. Exact names take precedence
// over wildcards, and longer wildcards over shorter ones.
function hostOf(port, name) {
  if (name === '') return null
  var found = (egress().ports || {})[`${port}`]
  var hosts = (found && found.hosts || []).filter(h => matchesHost(h.host, name))
  return hosts.reduce(
    (best, h) => !best || isWildcard(best.host) && (!isWildcard(h.host) || h.host.length > best.host.length) ? h : best, null
  )
}

function isWildcard(host) {
  return host.startsWith('*')
}

// backendTo returns the backend of a host for the original destination, or null if none of
// the host's matches applies.
function backendTo(host, name, to, holds) {
  if ((host.within || []).some(w => isIn(w.ranges, to.address) && holds(w.matches))) {
    var address = hostPort(to.address, to.port)
    return cached(`${to.port}/${name}@${address}`, () => ({ name: `egress/${to.port}/${host.host}@address`, endpoints: [{ address }], policy: host.policy }))
  }
  return holds(host.matches || []) ? hostBackend(host, name, to.port) : null
}

function hostBackend(host, name, port) {
  return cached(`${port}/${name}`, () => ({ name: `egress/${port}/${host.host}`, externalName: name, port, policy: host.policy }))
}

function cached(key, make) {
  var found = backends.get(key)
  if (!found) {
    if (backends.size >= MOST) forgetAll()
    found = newBackend(make(), `egress/${key}`)
    backends.set(key, found)
  }
  return found
}

function forgetAll() {
  // Pipy's Map passes the key first.
  backends.forEach((_, b) => forget(b))
  backends = new Map
}
