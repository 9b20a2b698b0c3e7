// Session persistence: keeps the requests of a client at one endpoint.
//
// A token is SHARE-KEY or SHARE-KEY-EXPIRY: the backend's share of the route, the endpoint's
// key, and a time in seconds. The key is a digest of the endpoint's name, so that the token
// does not contain its address.

import { backendOf, takesNew } from './backend.js'
import { cookiesOf } from './affinity.js'

// keptBy returns the {backend, endpoint} of the first token that counts, or null.
export function keptBy(session, head) {
  var kept = null
  tokensOf(session, head).find(
    function (token) {
      var parts = token.split('-')
      var entry = Object.entries(session.shares).find(entry => entry[0] === parts[0])
      if (!entry || !isCurrent(session, parts)) return false
      var b = backendOf(entry[1])
      var endpoint = b && b.endpoints.find(e => keyOf(e) === parts[1])
      if (!endpoint || !takesNew(b, endpoint)) return false
      kept = { backend: b, endpoint }
      return true
    }
  )
  return kept
}

function tokensOf(session, head) {
  if (session.cookie) return cookiesOf(head, session.cookie)
  var value = head.headers[session.header]
  return typeof value === 'string' ? [value] : []
}

// isCurrent reports whether a token has not expired. A later expiry than that of a new token
// is not the proxy's.
function isCurrent(session, parts) {
  if (!session.lifetime) return parts.length === 2
  var rest = Number.parseInt(parts[2] || '0') - now()
  return rest > 0 && rest <= session.lifetime
}

// keep adds a token for the endpoint that has answered.
export function keep(session, head, backend, endpoint) {
  var entry = Object.entries(session.shares).find(entry => entry[1] === backend.name)
  if (!entry) return
  var token = `${entry[0]}-${keyOf(endpoint)}`
  if (session.lifetime) token += `-${now() + session.lifetime}`
  if (session.cookie) {
    addCookie(head, `${session.cookie}=${token}${session.attributes}`)
  } else {
    head.headers[session.header] = token
  }
}

// addCookie adds a header Set-Cookie to an answer.
export function addCookie(head, cookie) {
  var before = head.headers['set-cookie']
  head.headers['set-cookie'] = before === undefined ? cookie : (before instanceof Array ? before : [before]).concat([cookie])
}

function now() {
  return Math.floor(Date.now() / 1000)
}

// keyOf returns the key of an endpoint, that of Go's mesh.Endpoint. It is made only once.
function keyOf(endpoint) {
  if (endpoint.token && endpoint.token.workload === endpoint.workload) return endpoint.token.key
  var at = endpoint.address.lastIndexOf(':')
  var name = [endpoint.workload, endpoint.address.substring(at + 1)]
  if (!endpoint.workload) name.push(endpoint.address.substring(0, at))
  var hash = new crypto.Hash('sha256')
  hash.update(JSON.stringify(name))
  endpoint.token = { workload: endpoint.workload, key: hash.digest('hex').substring(0, 16) }
  return endpoint.token.key
}
