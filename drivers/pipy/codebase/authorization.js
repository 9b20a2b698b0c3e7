// Authorization of inbound connections and requests: mesh.Inbound's Decide, on documents.

import { inbound, settings } from './config.js'
import { denies, holdsForAll, matchesHost, permits } from './match.js'
import { uriOf } from './certificate.js'

// Returns the document of the port with the number.
export function portAt(number) {
  return inbound().ports[`${number}`] || { protocol: 'tcp', access: inbound().others }
}

// Returns the settings that apply to all ports.
export function mode() {
  return { permissive: inbound().permissive || settings().plaintext }
}

// Classifies a TLS connection by its server name.
export function securityOf(serverName, trustDomain) {
  return (serverName || '').toLowerCase().endsWith('.sa.' + trustDomain.toLowerCase()) ? 'mesh TLS' : 'other TLS'
}

// Reports whether a URI is the SPIFFE ID of a workload of the mesh.
export function isMember(uri, trustDomain) {
  var prefix = `spiffe://${trustDomain}/ns/`
  if (!uri.startsWith(prefix)) return false
  var parts = uri.substring(prefix.length).split('/')
  return parts.length === 3 && parts[0] !== '' && parts[1] === 'sa' && parts[2] !== ''
}

// Returns the SPIFFE ID of a certificate that has been verified, or '' if it has none or
// has several URIs.
export function identityOf(certificate, trustDomain) {
  if (!certificate) return ''
  var uri = uriOf(certificate.toPEM().toString())
  return isMember(uri, trustDomain) ? uri : ''
}

// Decides whether an arrival may reach the application: it returns the name of the rule
// that admits it, or null. An arrival has the fields security, serverName, source, peer
// and request, which is undefined for a connection.
export function decide(mode, port, arrival) {
  var request = port.protocol === 'http' ? arrival.request : undefined
  var isMesh = arrival.security === 'mesh TLS'
  if (request && request.path === '*' && comparesPath(port)) return null
  if (isDenied(port, arrival.peer, request)) return null
  if (isMesh && arrival.peer) {
    if (port.access.anyone) return 'anyone'
    var rule = (port.access.rules || []).find(r => includes(r.sources, arrival.peer) && !includes(r.except, arrival.peer) && holds(r.requests, request))
    if (rule) return rule.name
  }
  var opened = (port.ingress || []).find(r => admits(r, arrival) && holds(r.requests, request))
  if (opened) return opened.name
  if (isMesh || !mode.permissive || !port.access.anyone) return null
  // The requests within the application's own TLS are not known.
  return arrival.security === 'other TLS' && isDenied(port, arrival.peer, undefined) ? null : 'permissive'
}

// Reports whether a rule of the port compares a path: none matches a request without one.
function comparesPath(port) {
  var rules = (port.access.denials || []).concat(port.access.anyone ? [] : port.access.rules || [], port.ingress || [])
  return (port.routeLimits || []).length > 0 || rules.some(r => (r.requests || []).some(c => c.path))
}

// Reports whether a denial refuses a request, or a connection if that is undefined. The peer is ''
// for a caller without an identity.
function isDenied(port, peer, request) {
  return (port.access.denials || []).some(
    d => (d.everyone || includes(d.sources, peer)) && !includes(d.except, peer) && d.requests.some(c => denies(c, request))
  )
}

// Reports whether a set of callers includes the peer.
function includes(callers, peer) {
  return Boolean(peer) && ((callers.ids || []).includes(peer) || (callers.groups || []).some(group => peer.startsWith(group)))
}

// Reports whether the rules would refuse an arrival, if they are audited: mesh.Inbound's Audit.
export function wouldRefuse(mode, port, arrival) {
  return Boolean(port.access.audit) && decide(mode, { ...port, access: { rules: port.access.rules } }, arrival) === null
}

// Reports whether one of the conditions holds for the request, or without a request for
// the connection.
function holds(conditions, request) {
  return conditions.some(c => request ? permits(c, request) : holdsForAll(c))
}

// Reports whether a plaintext connection is accepted at all. For HTTP the source address
// is checked with each request, so that a caller from the wrong address gets a 403.
export function takesPlaintext(mode, port, source) {
  if (mode.permissive && port.access.anyone) return true
  var arrival = { security: 'plaintext', source }
  return (port.ingress || []).some(r => admitsPlaintext(r) && (port.protocol === 'http' || admits(r, arrival)))
}

function admitsPlaintext(rule) {
  return !rule.tls && !needsPrincipal(rule) && (rule.ranges || []).length > 0 && rule.requests.length > 0
}

// Returns what a client of TLS other than mesh TLS must present: 'certificate',
// 'nothing', or undefined if the proxy does not terminate the connection. Pipy can't
// request a certificate and do without one, so rules that name the server name take
// precedence over others, and among those a rule that skips the certificate wins.
export function clientAuthentication(port, arrival) {
  var rules = (port.ingress || []).filter(r => r.tls && r.requests.length > 0 && isFor(r, arrival))
  if (rules.length === 0) return undefined
  var naming = rules.filter(r => r.sniHosts && r.sniHosts.length > 0)
  if (naming.length > 0) rules = naming
  return rules.some(r => !asksCertificate(r)) ? 'nothing' : 'certificate'
}

// Reports whether an ingress rule admits the caller, regardless of the request.
export function admits(rule, arrival) {
  if (!isFor(rule, arrival)) return false
  if (!rule.tls) return arrival.security === 'plaintext' && !needsPrincipal(rule)
  if (arrival.security === 'plaintext') return false
  if (arrival.security === 'mesh TLS' && (!asksCertificate(rule) || (rule.sniHosts || []).length > 0)) return false
  if (asksCertificate(rule) && !arrival.peer) return false
  return Boolean(rule.anyPrincipal || !needsPrincipal(rule) || rule.principals.includes(arrival.peer))
}

// Reports whether a rule applies to the source address and the server name.
function isFor(rule, arrival) {
  var ranges = rule.ranges || []
  if (ranges.length === 0 && !needsPrincipal(rule)) return false
  if (ranges.length > 0 && !masks(rule).some(mask => mask.contains(arrival.source))) return false
  var hosts = rule.tls && rule.sniHosts || []
  return hosts.length === 0 || hosts.some(host => matchesHost(host, arrival.serverName))
}

function needsPrincipal(rule) {
  return Boolean(rule.anyPrincipal || rule.principals && rule.principals.length > 0)
}

// Reports whether an ingress rule requires a client certificate of the mesh.
export function asksCertificate(rule) {
  return needsPrincipal(rule) || !rule.skipClientCert
}

function masks(rule) {
  return rule.masks || (rule.masks = rule.ranges.map(range => new IPMask(range)))
}
