// The identity in a certificate: the only URI among its subject alternative names.
//
// Pipy exposes a certificate's DNS names but not its URIs, so this parses the DER. A
// malformed certificate, or one with several URIs, counts as one without a URI.

var SEQUENCE = 0x30, OBJECT = 0x06, OCTETS = 0x04, EXTENSIONS = 0xa3, URI = 0x86
var SUBJECT_ALT_NAME = [0x55, 0x1d, 0x11]

var uriCharacters = '-._:/0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ'

// Returns the URI of a certificate in PEM, or ''.
export function uriOf(pem) {
  var text = pem.split('\n').filter(line => line !== '' && !line.startsWith('-----')).join('')
  return uriIn(new Data(text, 'base64').toArray())
}

function uriIn(der) {
  var found = null
  var valid = true
  extensions(der).forEach(
    function (extension) {
      var parts = elements(der, extension.first, extension.end) || []
      if (parts.length < 2 || !isSubjectAltName(der, parts[0])) return
      var value = parts[parts.length - 1]
      var names = value.tag === OCTETS ? within(der, value.first, value.end, SEQUENCE) : null
      if (!names) valid = false
      else names.filter(name => name.tag === URI).forEach(
        function (name) {
          if (found) valid = false
          found = name
        }
      )
    }
  )
  if (!valid || !found) return ''
  var uri = ''
  for (var i = found.first; i < found.end; i++) {
    var character = String.fromCharCode(der[i])
    // The URI goes into headers and logs, and must not contain their delimiters.
    if (der[i] === 0 || uriCharacters.indexOf(character) < 0) return ''
    uri += character
  }
  return uri
}

function isSubjectAltName(der, id) {
  return id.tag === OBJECT && id.end - id.first === SUBJECT_ALT_NAME.length && SUBJECT_ALT_NAME.every((byte, i) => der[id.first + i] === byte)
}

function extensions(der) {
  var certificate = within(der, 0, der.length, SEQUENCE)
  var body = certificate && certificate[0]
  var fields = body && body.tag === SEQUENCE && elements(der, body.first, body.end) || []
  var field = fields.find(field => field.tag === EXTENSIONS)
  return field && within(der, field.first, field.end, SEQUENCE) || []
}

// Returns the elements inside the only element between at and end, which must have the
// tag, or null.
function within(der, at, end, tag) {
  var all = elements(der, at, end)
  return all && all.length === 1 && all[0].tag === tag ? elements(der, all[0].first, all[0].end) : null
}

// Returns the DER elements between start and end, or null if they do not end there.
function elements(der, start, end) {
  var all = []
  var next = start
  for (var at = start; at < end; at = next) {
    var first = at + 2
    if (first > end) return null
    var length = der[at + 1]
    if (length >= 0x80) {
      var bytes = length - 0x80
      if (bytes < 1 || bytes > 3 || first + bytes > end) return null
      length = 0
      for (var i = 0; i < bytes; i++) length = length * 256 + der[first + i]
      first += bytes
    }
    next = first + length
    if (next > end) return null
    all.push({ tag: der[at], first, end: next })
  }
  return all
}
