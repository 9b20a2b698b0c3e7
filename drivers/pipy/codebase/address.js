// Addresses of connections.
//
// Pipy's own inbound.destinationAddress is missing for the first connection to a
// listener, whose socket is created before its options are set, and for IPv6. So this
// asks the kernel.

var SOL_IP = 0, SOL_IPV6 = 41, SO_ORIGINAL_DST = 80

// destinationOf returns the original destination of a redirected connection as
// {address, port}, or null if there is none.
export function destinationOf(inbound) {
  var v4 = new Data
  if (inbound.socket.getRawOption(SOL_IP, SO_ORIGINAL_DST, v4) === 0) {
    var b = v4.toArray()
    return { address: b.slice(4, 8).join('.'), port: b[2] * 256 + b[3] }
  }
  var v6 = new Data
  if (inbound.socket.getRawOption(SOL_IPV6, SO_ORIGINAL_DST, v6) === 0) {
    var b = v6.toArray()
    return { address: formatIPv6(b.slice(8, 24)), port: b[2] * 256 + b[3] }
  }
  return null
}

// peerOf returns the address of the other end, as documents spell it.
export function peerOf(inbound) {
  var address = inbound.remoteAddress
  return address.startsWith('::ffff:') && address.indexOf('.') > 0 ? address.substring(7) : address
}

// hostPort joins an address and a port.
export function hostPort(address, port) {
  return address.indexOf(':') >= 0 ? `[${address}]:${port}` : `${address}:${port}`
}

// formatIPv6 formats 16 bytes according to RFC 5952.
function formatIPv6(bytes) {
  var groups = Array(8).fill(0).map((_, i) => bytes[2 * i] * 256 + bytes[2 * i + 1])
  var start = -1, length = 1
  for (var i = 0; i < 8; i++) {
    var n = 0
    for (var j = i; j < 8 && groups[j] === 0; j++) n++
    if (n > length) {
      start = i
      length = n
    }
  }
  var text = part => part.map(g => g.toString(16)).join(':')
  return start < 0 ? text(groups) : text(groups.slice(0, start)) + '::' + text(groups.slice(start + length))
}
