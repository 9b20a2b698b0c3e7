// The proxy's own answers, and gRPC trailers.

// reply returns an answer to a request with the head. For gRPC clients it is a gRPC status.
export function reply(head, status, text, headers) {
  var type = head.headers['content-type']
  if (type && `${type}`.startsWith('application/grpc')) {
    var code = { '400': '13', '401': '16', '403': '7', '404': '12' }[`${status}`] || '14'
    return new Message(
      { status: 200, headers: { ...headers, 'content-type': 'application/grpc' } }, undefined,
      { headers: { 'grpc-status': code, 'grpc-message': text.trim() } }
    )
  }
  return new Message({ status, headers: { 'content-type': 'text/plain', ...headers } }, text)
}

// takeTrailers moves the gRPC status out of a head and returns it as trailers, or null:
// Pipy can't send headers that end the stream, and otherwise clients read the status only
// from trailers.
export function takeTrailers(head) {
  if (head.headers['grpc-status'] === undefined) return null
  var names = ['grpc-status', 'grpc-message', 'grpc-status-details-bin'].filter(name => head.headers[name] !== undefined)
  var trailers = Object.fromEntries(names.map(name => [name, head.headers[name]]))
  names.forEach(name => delete head.headers[name])
  return trailers
}
