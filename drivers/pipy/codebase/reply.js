// Answers of the proxy's own, and what gRPC says of the end of a call.

// reply returns an answer, which gRPC clients are given as they understand it.
export function reply(head, status, text, headers) {
  var type = head.headers['content-type']
  if (type && `${type}`.startsWith('application/grpc')) {
    var code = { '400': '13', '401': '16', '403': '7', '404': '12' }[`${status}`] || '14'
    return new Message(
      { status: 200, headers: { ...headers, 'content-type': 'application/grpc' } }, undefined,
      { headers: { 'grpc-status': code, 'grpc-message': text.trim() } }
    )
  }
  return new Message({ status, headers: { ...headers, 'content-type': 'text/plain' } }, text)
}

// takeTrailers moves what gRPC says of the end of a call out of a head: Pipy sends no
// head that ends the stream, and without that clients look for it in trailers only.
export function takeTrailers(head) {
  if (head.headers['grpc-status'] === undefined) return null
  var names = ['grpc-status', 'grpc-message', 'grpc-status-details-bin'].filter(name => head.headers[name] !== undefined)
  var trailers = Object.fromEntries(names.map(name => [name, head.headers[name]]))
  names.forEach(name => delete head.headers[name])
  return trailers
}
