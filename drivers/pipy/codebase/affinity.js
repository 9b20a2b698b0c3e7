// What tells clients apart where the same client is to reach the same endpoint.

// hashOf returns a text for the first thing that the request, or with null for one the
// connection, has of those that tell clients apart, or undefined.
export function hashOf(hashOn, head, peer) {
  if (!hashOn || hashOn.length === 0) return undefined
  var found = hashOn.map(
    function (on) {
      if (on.sourceIP) return peer
      if (!head) return undefined
      if (on.header) return head.headers[on.header.toLowerCase()]
      if (on.cookie) return cookieOf(head, on.cookie)
    }
  ).find(value => value !== undefined)
  return found
}

// cookieFor returns the cookie that a client is to be told apart by and does not have
// yet, as {name, value, header}, or null.
export function cookieFor(hashOn, head, peer) {
  if (!hashOn || hashOf(hashOn, head, peer) !== undefined) return null
  var on = hashOn.find(on => on.cookie)
  if (!on) return null
  var value = algo.uuid()
  var age = on.cookieTTL ? `; Max-Age=${Math.ceil(on.cookieTTL)}` : ''
  return { value, header: `${on.cookie}="${value}"${age}; HttpOnly` }
}

function cookieOf(head, name) {
  var cookies = head.headers.cookie
  if (!cookies) return undefined
  var pairs = (cookies instanceof Array ? cookies.join(';') : `${cookies}`).split(';').map(pair => pair.trim())
  var pair = pairs.find(pair => pair.startsWith(name + '='))
  if (!pair) return undefined
  var value = pair.substring(name.length + 1)
  return value.startsWith('"') && value.endsWith('"') && value.length > 1 ? value.substring(1, value.length - 1) : value
}
