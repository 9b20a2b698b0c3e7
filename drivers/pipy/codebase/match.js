// Conditions on requests, with the semantics of HTTPMatch in the Go package mesh.

// Reports whether a condition of a document holds for a result of requestOf.
export function matches(condition, request) {
  if (condition.path && !matchesText(condition.path, request.path)) return false
  if (condition.methods && !condition.methods.includes(request.method)) return false
  if (condition.headers && !condition.headers.every(h => matchesHeader(h, request))) return false
  if (condition.query && !condition.query.every(q => matchesParameter(q, request))) return false
  return true
}

// Reports whether a condition holds for a request that needs it for authorization. It does
// not hold if the application could interpret the path or the query differently.
export function permits(condition, request) {
  var path = condition.path
  if (path && (path.prefix !== undefined || path.stringPrefix !== undefined && path.stringPrefix !== '/' || path.regex) && isUnclear(request)) return false
  if (condition.query && !isPlainQuery(request.query, condition.query)) return false
  return matches(condition, request)
}

// Reports whether a denial's condition refuses a request, or, without one, a connection whose
// requests are not known. It is also refused if the application could interpret it differently.
export function denies(condition, request) {
  if (!request) return true
  if (condition.path && !matchesText(condition.path, request.path) && request.path.indexOf(';') < 0 && !isUnclear(request)) return false
  if (condition.methods && !condition.methods.includes(request.method)) return false
  if (condition.headers && !condition.headers.every(h => isDeniedHeader(h, request))) return false
  if (condition.query && !condition.query.every(q => isAmbiguousQuery(request.query, q.name) || isDeniedParameter(q, request))) return false
  return true
}

function isDeniedHeader(condition, request) {
  var value = condition.name === 'host' ? request.host : request.headers[condition.name]
  if (value === undefined || condition.name === 'host' && value === '') return false
  return value instanceof Array || isDeniedText(condition, value)
}

function isDeniedParameter(condition, request) {
  var values = parametersOf(request)[condition.name]
  if (values === undefined) return false
  return Boolean(condition.regex) && request.foreign.includes(condition.name) || matchesText(condition, values[0])
}

// Proxies and applications disagree about invalid UTF-8, so an expression holds for all that is not
// ASCII.
function isDeniedText(condition, text) {
  return Boolean(condition.regex) && new Data(text).size !== text.length || matchesText(condition, text)
}

// Reports whether applications read different values of a parameter in the query: Go's
// mesh.AmbiguousQuery.
function isAmbiguousQuery(query, name) {
  if (query.indexOf(';') >= 0 || query.indexOf('#') >= 0) return true
  var names = query.split('&').map(part => part.split('=')[0])
  return names.some(n => n.indexOf('%') >= 0 || n.indexOf('+') >= 0) || names.filter(n => n === name).length > 1
}

// Reports whether all applications interpret the compared parameters of the query alike.
function isPlainQuery(query, compared) {
  if (query.indexOf(';') >= 0) return false
  var names = query.split('&').map(part => part.split('=')[0])
  if (names.some(name => name.indexOf('%') >= 0 || name.indexOf('+') >= 0)) return false
  return compared.every(q => names.filter(name => name === q.name).length === 1)
}

// Reports whether a condition holds for every request: only such a one admits a connection
// whose requests are not known.
export function holdsForAll(condition) {
  return !condition.path && !condition.methods && !condition.headers && !condition.query
}

// Reports whether some applications interpret the path as a different one: it matches Go's
// mesh.AmbiguousPath.
export function isAmbiguous(path) {
  if (path.indexOf('\\') >= 0 || path.indexOf('#') >= 0 || path.indexOf('//') >= 0 || path.indexOf('/;') >= 0) return true
  if (path.indexOf('/.') >= 0 && path.split('/').some((segment, i) => i > 0 && isDots(segment.split(';')[0]))) return true
  for (var i = path.indexOf('%'); i >= 0; i = path.indexOf('%', i + 1)) {
    if (isAmbiguousEscape(path.substring(i, i + 5).toLowerCase())) return true
  }
  return false
}

// isUnclear remembers isAmbiguous of a request, which many rules ask for.
function isUnclear(request) {
  if (request.unclear === undefined) request.unclear = isAmbiguous(request.path)
  return request.unclear
}

function isDots(segment) {
  return segment === '.' || segment === '..'
}

var ambiguousEscapes = ['23', '25', '2e', '2f', '3b', '3f', '5c', '7f', 'c0', 'c1']

// Reports whether text that begins with a percent sign is no escape, or one that is
// interpreted in several ways, such as overlong UTF-8.
function isAmbiguousEscape(text) {
  var first = text.charAt(1)
  var digits = text.substring(1, 3)
  if (digits.length < 2 || hexadecimal.indexOf(first) < 0 || hexadecimal.indexOf(digits.charAt(1)) < 0) return true
  if (first === '0' || first === '1' || ambiguousEscapes.includes(digits)) return true
  var next = text.substring(3)
  return digits === 'e0' && (next === '%8' || next === '%9') || (digits === 'f0' || digits === 'f8' || digits === 'fc') && next === '%8'
}

function matchesHeader(condition, request) {
  var value = condition.name === 'host' ? request.host : request.headers[condition.name]
  if (value === undefined || condition.name === 'host' && value === '') return false
  // Of several lines the application may use a different one than is compared.
  if (value instanceof Array) return Boolean(condition.any || condition.present)
  return matchesText(condition, value)
}

function matchesParameter(condition, request) {
  var values = parametersOf(request)[condition.name]
  return values !== undefined && matchesText(condition, values[0])
}

// Returns the parameters of the query, lists of values by name, as Go's url.ParseQuery
// does: malformed parts are left out.
function parametersOf(request) {
  var parameters = request.parameters
  if (!parameters) {
    parameters = {}
    request.parameters = parameters
    request.foreign = []
    request.query.split('&').forEach(
      function (part) {
        if (part === '' || part.indexOf(';') >= 0) return
        var i = part.indexOf('=')
        var name = unescape(i < 0 ? part : part.substring(0, i))
        var value = unescape(i < 0 ? '' : part.substring(i + 1))
        if (name === undefined || value === undefined) return
        if (parameters[name] instanceof Array) {
          parameters[name].push(value)
          return
        }
        parameters[name] = [value]
        if (isForeign(part)) request.foreign.push(name)
      }
    )
  }
  return parameters
}

// Reports whether a text has or escapes bytes that are not ASCII.
function isForeign(text) {
  for (var i = text.indexOf('%'); i >= 0; i = text.indexOf('%', i + 1)) {
    if ('89abcdefABCDEF'.indexOf(text.charAt(i + 1)) >= 0) return true
  }
  return new Data(text).size !== text.length
}

var hexadecimal = '0123456789abcdefABCDEF'

// Decodes a part of a query, or returns undefined if it is malformed.
function unescape(text) {
  if (text.indexOf('+') >= 0) text = text.replaceAll('+', ' ')
  if (text.indexOf('%') < 0) return text
  var bytes = new Data(text).toArray()
  var decoded = []
  for (var i = 0; i < bytes.length; i++) {
    if (bytes[i] === 0x25) {
      if (i + 2 >= bytes.length) return undefined
      var digits = String.fromCharCode(bytes[i + 1], bytes[i + 2])
      if (hexadecimal.indexOf(digits.charAt(0)) < 0 || hexadecimal.indexOf(digits.charAt(1)) < 0) return undefined
      decoded.push(Number.parseInt(digits, 16))
      i += 2
    } else {
      decoded.push(bytes[i])
    }
  }
  // Invalid UTF-8 is no text.
  var decodedText = new Data(decoded).toString()
  return typeof decodedText === 'string' ? decodedText : replacement
}

var replacement = String.fromCharCode(0xfffd)

// Reports whether the text matches. An empty condition matches nothing.
function matchesText(condition, text) {
  if (condition.never) return false
  if (condition.exact !== undefined) return text === condition.exact
  if (condition.prefix !== undefined) return text === condition.prefix || text.startsWith(condition.prefix + '/')
  if (condition.stringPrefix !== undefined) return text.startsWith(condition.stringPrefix)
  if (condition.regex) return accepts(condition.regex, text)
  return Boolean(condition.any || condition.present)
}

// Runs the automaton of an expression. Its table is documented in automaton.go.
function accepts(automaton, text) {
  var ascii = automaton.ascii || (automaton.ascii = asciiClasses(automaton))
  var width = automaton.width
  var next = automaton.next
  var state = 0
  for (var i = 0; i < text.length; i++) {
    var c = text.codePointAt(i)
    state = next[state * width + (c < 128 ? ascii[c] : classOf(automaton, c))]
    if (!(state >= 0)) return false
  }
  return automaton.accept[state] === 1
}

function asciiClasses(automaton) {
  var classes = []
  for (var c = 0; c < 128; c++) classes.push(classOf(automaton, c))
  return classes
}

function classOf(automaton, c) {
  var starts = automaton.starts
  var low = 0
  var high = starts.length
  for (var middle = high >> 1; high - low > 1; middle = (low + high) >> 1) {
    if (starts[middle] <= c) low = middle
    else high = middle
  }
  return automaton.classes[low]
}

// Reports whether a host without a port matches a pattern, which is exact or begins with
// "*." for one or more labels.
export function matchesHost(pattern, host) {
  pattern = pattern.toLowerCase()
  host = (host || '').toLowerCase()
  if (pattern.startsWith('*')) {
    var suffix = pattern.substring(1)
    return suffix.startsWith('.') && host.length > suffix.length && host.endsWith(suffix)
  }
  return host !== '' && host === pattern
}
