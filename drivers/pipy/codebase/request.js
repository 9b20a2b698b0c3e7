// Requests in a canonical form, in which they are matched and forwarded: all readers
// interpret it alike.

// Headers by which a client could claim an identity: Go's mesh.IdentityHeaders.
export var claims = ['serviceidentity', 'x-envoy-peer-metadata', 'x-envoy-peer-metadata-id', 'x-forwarded-client-cert']

// Headers that say where the body of a request ends: Go's mesh.FramingHeaders.
export var framing = ['content-length', 'transfer-encoding']

// Headers that decide where a request goes or where it ends.
var structural = ['connection', 'content-length', 'expect', 'host', 'keep-alive', 'proxy-connection', 'te', 'trailer', 'transfer-encoding', 'upgrade']

var tokenCharacters = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
var authorityCharacters = "-._~!$&'()*+,;=:[]%0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
var unreserved = '-._~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ'
var nul = String.fromCharCode(0)
var illegalCharacters = ['#', String.fromCharCode(0x7f)]
for (var code = 0; code <= 0x20; code++) illegalCharacters.push(String.fromCharCode(code))
var hexadecimal = '0123456789abcdefABCDEF'
var decimal = '0123456789'
var letters = '0123456789abcdefghijklmnopqrstuvwxyz'
var largestLength = 2147483647

// What is known of names of headers, methods and hosts, which are few. Pipy needs about a
// microsecond for each character that a script looks at.
var tokens = new Map, spellings = new Map, treatments = new Map, authorities = new Map, illegal = new Map
var mostKnown = 4096, longestKnown = 256

// What happens to a header with a name: the request is invalid, or the header is removed or
// forwarded.
var INVALID = 0, REMOVED = 1, FORWARDED = 2

// Brings the head of a request into canonical form, in place, and removes headers that
// clients must not send. It returns false if the request is invalid: the answer is 400.
// The HTTP/2 decoder accepts line breaks in any field, which the HTTP/1 encoder would write
// as the beginning of another request.
export function clean(head, mergeSlashes) {
  if (!isToken(head.method)) return false
  if (!moveAuthority(head)) return false
  if (!hasOneLength(head)) return false
  if (head.scheme && head.scheme !== 'http' && head.scheme !== 'https') return false
  var path = cleanPath(head.path, mergeSlashes)
  if (path === undefined || path.charAt(0) !== '/' && !(path === '*' && head.method === 'OPTIONS')) return false
  if (path !== head.path) head.path = path
  var valid = true
  Object.entries(head.headers).forEach(
    function (entry) {
      var treatment = treatmentOf(entry[0])
      if (treatment === INVALID || !isValue(entry[1])) valid = false
      else if (treatment === REMOVED) delete head.headers[entry[0]]
    }
  )
  if (!valid) return false
  joinCookies(head)
  return true
}

function treatmentOf(name) {
  var known = treatments.get(name)
  return known === undefined ? remember(treatments, name, judge(name)) : known
}

function judge(name) {
  // HTTP/2 forbids capital letters in names, but not every decoder rejects them. Such names
  // would bypass all comparisons here.
  if (!isToken(name) || name !== name.toLowerCase()) return INVALID
  var plain = plainSpelling(name)
  if (plain !== name && framing.includes(plain)) return REMOVED
  return isReserved(plain) || claims.includes(plain) ? REMOVED : FORWARDED
}

// Reports whether a header belongs to the proxies, so that neither end may send it.
function isReserved(plain) {
  return plain.startsWith('x-envoy-') || isOwn(plain)
}

// Reports whether only the proxies send each other a header or trailer of that name.
export function isOwn(name) {
  return plainSpelling(name).startsWith('x-outrigger-')
}

// Removes from headers or trailers those that only the proxies send each other.
export function dropOwn(headers) {
  Object.keys(headers).forEach(
    function (name) {
      if (isOwn(name)) delete headers[name]
    }
  )
}

// Reports whether a trailer may be passed on: it neither claims an identity nor decides where the
// message ends or goes, and it does not belong to the proxies.
export function isTrailer(name) {
  return treatmentOf(name) === FORWARDED && !structural.includes(name)
}

// remember stores what is known of a text and returns it. Long texts are not stored, because
// clients choose them.
function remember(map, text, known) {
  if (text.length > longestKnown) return known
  if (map.size >= mostKnown) map.clear()
  map.set(text, known)
  return known
}

// Removes headers that some applications mistake for one of the names, because they have
// an underscore or the like in place of a hyphen.
export function dropSpellings(head, names) {
  if (names.length === 0) return
  Object.keys(head.headers).forEach(
    function (name) {
      var plain = plainSpelling(name)
      if (plain !== name && names.includes(plain)) delete head.headers[name]
    }
  )
}

// Reports whether a header may be given the value: it must be valid, in lower case, and
// neither claim an identity nor decide where a request goes or where it ends.
export function isChangeable(name, value) {
  if (!isToken(name) || !isValue(value) || name !== name.toLowerCase() || structural.includes(name)) return false
  var plain = plainSpelling(name)
  return !isReserved(plain) && !claims.includes(plain)
}

// Returns the name with a hyphen in place of everything but letters and digits.
function plainSpelling(name) {
  var plain = spellings.get(name)
  if (plain === undefined) {
    plain = ''
    for (var i = 0; i < name.length; i++) {
      var c = name.charAt(i)
      plain += letters.indexOf(c) < 0 ? '-' : c
    }
    remember(spellings, name, plain)
  }
  return plain
}

// Joins the cookie header, which HTTP/2 clients may split.
function joinCookies(head) {
  var cookie = head.headers.cookie
  if (!head.protocol && cookie instanceof Array) head.headers.cookie = cookie.join('; ')
}

// Reports whether all readers of the head agree on the end of the body: otherwise one could
// read a smuggled request after it. The HTTP/1 decoder ignores what follows a number, and
// reads only 31 bits of it. The encoder sends the content-length of a HEAD request, but not
// its body.
function hasOneLength(head) {
  var encoding = head.headers['transfer-encoding']
  var length = head.headers['content-length']
  if (encoding !== undefined) return encoding === 'chunked' && length === undefined && head.method !== 'HEAD'
  if (length === undefined) return true
  if (typeof length !== 'string' || length === '' || !consistsOf(length, decimal)) return false
  return head.method === 'HEAD' ? length === '0' : !head.protocol || Number.parseInt(length) <= largestLength
}

// Makes the up to three places that name the host agree.
function moveAuthority(head) {
  var path = head.path
  if (typeof path !== 'string') return false
  var headers = head.headers
  if (path.charAt(0) !== '/' && path !== '*') {
    var scheme = path.toLowerCase().startsWith('http://') ? 7 : path.toLowerCase().startsWith('https://') ? 8 : 0
    if (!scheme) return false
    var end = path.indexOf('/', scheme)
    var query = path.indexOf('?', scheme)
    if (query >= 0 && (end < 0 || query < end)) end = query
    if (end < 0) end = path.length
    headers.host = path.substring(scheme, end)
    head.path = path.charAt(end) === '/' ? path.substring(end) : '/' + path.substring(end)
  } else if (head.authority) {
    headers.host = head.authority
  }
  var host = headers.host
  if (host === undefined) {
    if (head.protocol === 'HTTP/1.1') return false
    return true
  }
  if (typeof host !== 'string' || !isAuthority(host)) return false
  if (head.authority) head.authority = host
  return true
}

export function isToken(name) {
  if (typeof name !== 'string') return false
  var known = tokens.get(name)
  return known === undefined ? remember(tokens, name, name.length > 0 && consistsOf(name, tokenCharacters)) : known
}

function isAuthority(host) {
  var known = authorities.get(host)
  return known === undefined ? remember(authorities, host, consistsOf(host, authorityCharacters)) : known
}

function isValue(value) {
  if (typeof value === 'string') return value.indexOf('\r') < 0 && value.indexOf('\n') < 0 && value.indexOf(nul) < 0
  return value instanceof Array && value.every(isValue)
}

// consistsOf reports whether all characters of the text are among the others.
export function consistsOf(text, characters) {
  for (var i = 0; i < text.length; i++) {
    if (characters.indexOf(text.charAt(i)) < 0) return false
  }
  return true
}

// Returns the path normalized as by Envoy: without dot segments, with unnecessary percent
// encoding decoded and necessary one added. It returns undefined if the path is invalid.
export function cleanPath(path, mergeSlashes) {
  if (isIllegal(path)) return undefined
  var end = path.indexOf('?')
  var query = ''
  if (end >= 0) {
    query = path.substring(end)
    path = path.substring(0, end)
  }
  if (path.indexOf('%') >= 0 || path.indexOf('\\') >= 0 || new Data(path).size !== path.length) {
    if (path.indexOf(';') >= 0 && hasEscapedDots(path)) return undefined
    path = decodePath(path)
    if (path === undefined) return undefined
  }
  if (path.indexOf('/.') >= 0) path = removeDotSegments(path)
  if (mergeSlashes) {
    for (var i = path.indexOf('//'); i >= 0; i = path.indexOf('//')) path = path.replaceAll('//', '/')
  }
  return path + query
}

// Reports whether a path has a character that no URL has: a space, "#" or one that controls.
function isIllegal(path) {
  var known = illegal.get(path)
  return known === undefined ? remember(illegal, path, illegalCharacters.some(c => path.indexOf(c) >= 0)) : known
}

var escapedDots = ['%2e', '.%2e', '%2e.', '%2e%2e']

// Reports whether parameters follow dots of which one is escaped: proxies disagree about these.
function hasEscapedDots(path) {
  return path.toLowerCase().replaceAll('\\', '/').split('/').some(segment => segment.indexOf(';') >= 0 && escapedDots.includes(segment.split(';')[0]))
}

function decodePath(path) {
  var bytes = new Data(path).toArray()
  var text = ''
  for (var i = 0; i < bytes.length; i++) {
    var c = bytes[i]
    if (c === 0x5c) {
      text += '/'
    } else if (c >= 0x80) {
      text += percent(c)
    } else if (c === 0x25 && isHex(bytes[i + 1]) && isHex(bytes[i + 2])) {
      var digits = String.fromCharCode(bytes[i + 1], bytes[i + 2])
      var decoded = Number.parseInt(digits, 16)
      if (decoded === 0) return undefined
      var character = String.fromCharCode(decoded)
      var stays = decoded >= 0x80 || unreserved.indexOf(character) < 0 || isHex(decoded) && beginsEscape(text)
      text += stays ? '%' + digits : character
      i += 2
    } else {
      text += String.fromCharCode(c)
    }
  }
  return text
}

// Reports whether a text ends with a percent sign, or one and a digit.
function beginsEscape(text) {
  var last = text.length - 1
  return text.charAt(last) === '%' || text.charAt(last - 1) === '%' && hexadecimal.indexOf(text.charAt(last)) >= 0
}

function isHex(c) {
  return c !== undefined && hexadecimal.indexOf(String.fromCharCode(c)) >= 0
}

function percent(c) {
  return '%' + hexadecimal.charAt(c >> 4).toUpperCase() + hexadecimal.charAt(c & 15).toUpperCase()
}

// A segment is one of dots, too, if parameters follow them.
function removeDotSegments(path) {
  var segments = path.split('/')
  var last = segments.length - 1
  var kept = []
  segments.forEach(
    function (segment, i) {
      if (i === 0) return
      var dots = segment.split(';')[0]
      if (dots === '..') kept.pop()
      else if (dots !== '.') kept.push(segment)
      if (i === last && (dots === '..' || dots === '.')) kept.push('')
    }
  )
  return '/' + kept.join('/')
}

// Returns the request that conditions are checked against. The head must be clean.
export function requestOf(head) {
  var path = head.path
  var end = path.indexOf('?')
  return {
    method: head.method,
    host: head.headers.host || '',
    path: end < 0 ? path : path.substring(0, end),
    query: end < 0 ? '' : path.substring(end + 1),
    headers: head.headers,
    parameters: undefined,
    unclear: undefined,
  }
}
