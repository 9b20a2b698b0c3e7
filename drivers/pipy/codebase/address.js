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

// headerSize returns the size of the header of the PROXY protocol, version 2, with which the
// data begins, or -1 if that is not known yet.
export function headerSize(data) {
  if (data.size < 16) return -1
  var b = new Data(data).shift(16).toArray()
  return 16 + b[14] * 256 + b[15]
}

// parseHeader returns {to, peer, port} of such a header, or null if it has no addresses.
export function parseHeader(b) {
  if (b[12] !== 0x21) return null
  var v4 = b[13] === 0x11
  if (!v4 && b[13] !== 0x21) return null
  var size = v4 ? 4 : 16
  var address = at => v4 ? b.slice(at, at + 4).join('.') : formatIPv6(b.slice(at, at + 16))
  var port = at => b[at] * 256 + b[at + 1]
  var ports = 16 + 2 * size
  return { to: { address: address(16 + size), port: port(ports + 2) }, peer: address(16), port: port(ports) }
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
