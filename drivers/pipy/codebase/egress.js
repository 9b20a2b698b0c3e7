// What may be called outside of the mesh: by host, by server name, or by address.
//
// What is named by host goes to the addresses that the host's name resolves to, not to
// the one that the application chose: else an allowed name would be a way to any
// address. What is named by host and addresses goes to the one that was chosen.

import { egress, onChange } from './config.js'
import { newBackend, forget } from './backend.js'
import { hostPort } from './address.js'
import { matches, matchesHost } from './match.js'

var digits = '0123456789'
var nameCharacters = digits + 'abcdefghijklmnopqrstuvwxyz-_.'

// How many hosts and addresses outside of the mesh are remembered.
var MOST = 1000

// backends are those outside of the mesh that were called, by name, and masks the
// ranges of addresses as they are compared.
var backends = new Map
var masks = {}

onChange(
  function (names) {
    if (!names['config/egress.json']) return
    forgetAll()
    masks = {}
  }
)

// kindOf says what is done with a connection to a port outside of the mesh: "http" and
// "tls" look at what comes, "passthrough" goes to the address, and "closed" nowhere.
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

// isIn reports whether an address is in one of the ranges.
function isIn(ranges, address) {
  return ranges.some(
    function (text) {
      if (!masks[text]) masks[text] = new IPMask(text)
      return masks[text].contains(address)
    }
  )
}

// passthrough returns the backend that is the address itself.
export function passthrough(to) {
  var address = hostPort(to.address, to.port)
  return remembered(`passthrough/${address}`, () => ({ name: 'passthrough', endpoints: [{ address }] }))
}

// serverBackend returns the backend for a connection in TLS with the server name, which
// may be '', or null.
export function serverBackend(to, serverName) {
  var found = hostOf(to.port, serverName)
  if (found) return backendTo(found, serverName, to, m => m.length > 0)
  return egress().allowAll ? passthrough(to) : null
}

// requestBackend returns {backend, timeout} for a request, or null if it is not allowed.
export function requestBackend(to, request) {
  var name = nameOf(request.host)
  var found = hostOf(to.port, name.host)
  // For a wildcard the request says where to connect to, and without a port that is 80.
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

// hostName returns a name that can be resolved, in lower case, or '' for anything else.
// An address is no name, and Pipy's resolver reads one only up to a NUL: what is
// compared must be what is resolved.
export function hostName(text) {
  var name = `${text || ''}`.toLowerCase()
  if (name.length === 0 || name.length > 253) return ''
  for (var i = 0; i < name.length; i++) {
    if (nameCharacters.indexOf(name.charAt(i)) < 0) return ''
  }
  return digits.indexOf(name.charAt(name.lastIndexOf('.') + 1)) >= 0 ? '' : name
}

// hostOf returns what is said of a host at a port: an exact name goes before a wildcard,
// and a longer one before a shorter one.
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

// backendTo returns the backend of a host for what was sent to the address, or null if
// none of what is said of the host holds.
function backendTo(host, name, to, holds) {
  if ((host.within || []).some(w => isIn(w.ranges, to.address) && holds(w.matches))) {
    var address = hostPort(to.address, to.port)
    return remembered(`${to.port}/${name}@${address}`, () => ({ name: `egress/${to.port}/${host.host}@address`, endpoints: [{ address }], policy: host.policy }))
  }
  return holds(host.matches || []) ? hostBackend(host, name, to.port) : null
}

function hostBackend(host, name, port) {
  return remembered(`${port}/${name}`, () => ({ name: `egress/${port}/${host.host}`, externalName: name, port, policy: host.policy }))
}

function remembered(key, make) {
  var found = backends.get(key)
  if (!found) {
    if (backends.size >= MOST) forgetAll()
    found = newBackend(make(), `egress/${key}`)
    backends.set(key, found)
  }
  return found
}

function forgetAll() {
  // Pipy's Map gives the key first.
  backends.forEach((_, b) => forget(b))
  backends = new Map
}
