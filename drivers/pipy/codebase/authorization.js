// Who may come in: what mesh.Inbound's Decide says, for the documents.

import { inbound, settings } from './config.js'
import { holdsForAll, matchesHost, permits } from './match.js'
import { uriOf } from './certificate.js'

// Returns the document of the port of that number.
export function portAt(number) {
  return inbound().ports[`${number}`] || { protocol: 'tcp', access: inbound().others }
}

// Returns what holds for all ports.
export function mode() {
  return { permissive: inbound().permissive || settings().plaintext }
}

// In what a connection arrives.
export function securityOf(serverName, trustDomain) {
  return (serverName || '').toLowerCase().endsWith('.sa.' + trustDomain.toLowerCase()) ? 'mesh TLS' : 'other TLS'
}

// Reports whether a URI is the SPIFFE ID of an identity of the mesh.
export function isMember(uri, trustDomain) {
  var prefix = `spiffe://${trustDomain}/ns/`
  if (!uri.startsWith(prefix)) return false
  var parts = uri.substring(prefix.length).split('/')
  return parts.length === 3 && parts[0] !== '' && parts[1] === 'sa' && parts[2] !== ''
}

// Returns the SPIFFE ID of who a certificate is of, which has been verified. It returns ''
// where there is none or where the certificate has several URIs: then it is nobody's.
export function identityOf(certificate, trustDomain) {
  if (!certificate) return ''
  var uri = uriOf(certificate.toPEM().toString())
  return isMember(uri, trustDomain) ? uri : ''
}

// Says whether what arrives may reach the application: it returns the rule that lets
// it, or null. The arrival has the fields security, serverName, source, peer and
// request, which is undefined for a connection.
export function decide(mode, port, arrival) {
  var request = port.protocol === 'http' ? arrival.request : undefined
  var isMesh = arrival.security === 'mesh TLS'
  if (isMesh && arrival.peer) {
    if (port.access.anyone) return 'anyone'
    var rule = (port.access.rules || []).find(r => r.sources.includes(arrival.peer) && holds(r.requests, request))
    if (rule) return rule.name
  }
  var opened = (port.ingress || []).find(r => admits(r, arrival) && holds(r.requests, request))
  if (opened) return opened.name
  return !isMesh && mode.permissive && port.access.anyone ? 'permissive' : null
}

// Reports whether one of the conditions holds for the request, or for a connection if
// there is none.
function holds(conditions, request) {
  return conditions.some(c => request ? permits(c, request) : holdsForAll(c))
}

// Reports whether a connection in plaintext is taken at all. Requests are denied one by
// one, so that a caller from the wrong address is told.
export function takesPlaintext(mode, port, source) {
  if (mode.permissive && port.access.anyone) return true
  var arrival = { security: 'plaintext', source }
  return (port.ingress || []).some(r => letsPlaintext(r) && (port.protocol === 'http' || admits(r, arrival)))
}

function letsPlaintext(rule) {
  return !rule.tls && !asksPrincipal(rule) && (rule.ranges || []).length > 0 && rule.requests.length > 0
}

// Says what is asked of a client that speaks other TLS than the mesh's: 'certificate',
// 'nothing', or undefined if it is not for the proxy to answer. Pipy can't take a
// certificate without asking everybody for one, so the rules that name the server name
// decide before the others, and one that takes clients without before its like.
export function clientAuthentication(port, arrival) {
  var rules = (port.ingress || []).filter(r => r.tls && r.requests.length > 0 && isFor(r, arrival))
  if (rules.length === 0) return undefined
  var naming = rules.filter(r => r.sniHosts && r.sniHosts.length > 0)
  if (naming.length > 0) rules = naming
  return rules.some(r => !asksCertificate(r)) ? 'nothing' : 'certificate'
}

// Reports whether an ingress rule takes the caller, whatever the requests.
export function admits(rule, arrival) {
  if (!isFor(rule, arrival)) return false
  if (!rule.tls) return arrival.security === 'plaintext' && !asksPrincipal(rule)
  if (arrival.security === 'plaintext') return false
  if (arrival.security === 'mesh TLS' && (!asksCertificate(rule) || (rule.sniHosts || []).length > 0)) return false
  if (asksCertificate(rule) && !arrival.peer) return false
  return Boolean(rule.anyPrincipal || !asksPrincipal(rule) || rule.principals.includes(arrival.peer))
}

// Reports whether a rule is about callers from the address and to the server name.
function isFor(rule, arrival) {
  var ranges = rule.ranges || []
  if (ranges.length === 0 && !asksPrincipal(rule)) return false
  if (ranges.length > 0 && !masks(rule).some(mask => mask.contains(arrival.source))) return false
  var hosts = rule.tls && rule.sniHosts || []
  return hosts.length === 0 || hosts.some(host => matchesHost(host, arrival.serverName))
}

function asksPrincipal(rule) {
  return Boolean(rule.anyPrincipal || rule.principals && rule.principals.length > 0)
}

// Reports whether an ingress rule takes nobody without a certificate of the mesh.
export function asksCertificate(rule) {
  return asksPrincipal(rule) || !rule.skipClientCert
}

function masks(rule) {
  return rule.masks || (rule.masks = rule.ranges.map(range => new IPMask(range)))
}
