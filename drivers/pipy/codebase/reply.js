// The proxy's own answers, and gRPC trailers.

// The codes of gRPC for the statuses of HTTP. Those of others are UNAVAILABLE, which clients
// repeat; a request that has timed out they must not repeat.
var codes = { '400': '13', '401': '16', '403': '7', '404': '12', '501': '12', '504': '4' }

// reply returns an answer to a request with the head. For gRPC clients it is a gRPC status.
export function reply(head, status, text, headers) {
  var type = head.headers['content-type']
  if (type && `${type}`.startsWith('application/grpc')) {
    var code = codes[`${status}`] || '14'
    return new Message(
      { status: 200, headers: { ...headers, 'content-type': 'application/grpc' } }, undefined,
      { headers: { 'grpc-status': code, 'grpc-message': text.trim() } }
    )
  }
  return new Message({ status, headers: { 'content-type': 'text/plain', ...headers } }, text)
}

// The headers of such an answer that are not metadata.
var ofHead = ['content-length', 'content-type', 'date', 'server', 'transfer-encoding']

// isGRPC reports whether the head is one of gRPC.
export function isGRPC(head) {
  return `${head.headers['content-type']}`.startsWith('application/grpc')
}

// cutOff returns the end of a gRPC answer that has been cut off, which Pipy can't reset.
export function cutOff() {
  return new MessageEnd({ headers: { 'grpc-status': '14', 'grpc-message': 'the answer was cut off' } })
}

// takeTrailers moves the metadata out of the head of a gRPC answer that is nothing but its
// head, and returns it as trailers, or null: Pipy can't send headers that end the stream, and
// otherwise clients read the status only from trailers.
export function takeTrailers(head) {
  if (head.headers['grpc-status'] === undefined) return null
  var names = Object.keys(head.headers).filter(name => !ofHead.includes(name))
  var trailers = Object.fromEntries(names.map(name => [name, head.headers[name]]))
  names.forEach(name => delete head.headers[name])
  return trailers
}
