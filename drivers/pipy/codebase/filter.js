// Filters of a route: changes of headers, of the host and of the path, redirects, and CORS.

// changeHeaders changes headers in place, as Go's mesh.HeaderChanges. Lines that are added
// to a header are joined with it, since Pipy reads only the last of several lines.
export function changeHeaders(headers, changes) {
  if (!changes) return
  // Pipy calls a method of undefined in spite of "?.", which ends the process.
  each(changes.set, h => headers[h.name] = h.value)
  each(changes.add, h => add(headers, h.name, h.value))
  each(changes.remove, name => delete headers[name])
}

function each(list, f) {
  if (list) list.forEach(f)
}

function add(headers, name, value) {
  var before = headers[name]
  if (before === undefined) {
    headers[name] = value
  } else if (name === 'set-cookie') {
    headers[name] = (before instanceof Array ? before : [before]).concat([value])
  } else {
    headers[name] = `${before},${value}`
  }
}

// rewrite changes the host and the path of a request that matched the path prefix.
export function rewrite(head, to, prefix) {
  if (to.host) {
    head.headers.host = to.host
    if (head.authority) head.authority = to.host
  }
  head.path = changedPath(head.path, to.path, prefix)
}

// locationOf returns the URL of a redirect.
export function locationOf(head, to, prefix) {
  var host = to.host || hostOf(head.headers.host || '')
  return `${to.scheme}://${host}${to.port ? ':' + to.port : ''}${changedPath(head.path, to.path, prefix)}`
}

function hostOf(authority) {
  var end = authority.startsWith('[') ? authority.indexOf(']') + 1 : authority.indexOf(':')
  return end > 0 ? authority.substring(0, end) : authority
}

function changedPath(path, change, prefix) {
  if (!change) return path
  var end = path.indexOf('?')
  var query = end < 0 ? '' : path.substring(end)
  if (end >= 0) path = path.substring(0, end)
  if (change.full) return change.full + query
  return (change.prefix + path.substring(prefix.length) || '/') + query
}

// isPreflight reports whether a browser asks which requests it may send.
export function isPreflight(head) {
  return head.method === 'OPTIONS' && !!head.headers.origin && !!head.headers['access-control-request-method']
}

// preflightHeaders returns the headers of the answer to a preflight request. The origin is
// empty if it is not allowed.
export function preflightHeaders(cors, origin, asked) {
  var headers = {}
  if (!origin) return headers
  allow(headers, cors, origin)
  headers['access-control-max-age'] = `${cors.maxAge}`
  var methods = cors.methods === '*' ? asked['access-control-request-method'] : cors.methods
  var names = cors.headers === '*' ? asked['access-control-request-headers'] : cors.headers
  if (methods) headers['access-control-allow-methods'] = methods
  if (names) headers['access-control-allow-headers'] = names
  return headers
}

// shareWith lets a page of the origin read an answer.
export function shareWith(headers, cors, origin) {
  allow(headers, cors, origin)
}

function allow(headers, cors, origin) {
  headers['access-control-allow-origin'] = origin
  if (cors.credentials) headers['access-control-allow-credentials'] = 'true'
  if (cors.expose) headers['access-control-expose-headers'] = cors.expose
  add(headers, 'vary', 'Origin')
}
