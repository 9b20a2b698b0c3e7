// Session affinity: the keys that send the same client to the same endpoint.

// hashOf returns the first value that the request has of those to hash on, or undefined.
// With null as the head only those of the connection are considered.
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

// cookieFor returns the affinity cookie for a client that has no value to hash on, as
// {value, header}, or null if none is needed.
export function cookieFor(hashOn, head, peer) {
  if (!hashOn || hashOf(hashOn, head, peer) !== undefined) return null
  var on = hashOn.find(on => on.cookie)
  if (!on) return null
  var value = algo.uuid()
  var age = on.cookieTTL ? `; Max-Age=${Math.ceil(on.cookieTTL)}` : ''
  return { value, header: `${on.cookie}="${value}"${age}; HttpOnly` }
}

function cookieOf(head, name) {
  return cookiesOf(head, name)[0]
}

// cookiesOf returns the values of the cookies with the name.
export function cookiesOf(head, name) {
  var cookies = head.headers.cookie
  if (!cookies) return []
  var pairs = (cookies instanceof Array ? cookies.join(';') : `${cookies}`).split(';').map(pair => pair.trim())
  return pairs.filter(pair => pair.startsWith(name + '=')).map(
    function (pair) {
      var value = pair.substring(name.length + 1)
      return value.startsWith('"') && value.endsWith('"') && value.length > 1 ? value.substring(1, value.length - 1) : value
    }
  )
}
