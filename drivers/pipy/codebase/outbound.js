// Connections of the application, all of which are redirected to port 15001, or of the clients of
// a gateway.
//
// The original destination decides: a connection goes to a destination of the mesh, or
// outside the mesh if that is allowed. All others are closed.
//
// Where there may be destinations that this proxy does not know, the connection goes to the
// agent, which finds out and hands it back to the port KNOWN or, if it leaves the mesh, to
// OUTSIDE, with a header of the PROXY protocol.

import { destinationAt, gatewayPorts, settings } from './config.js'
import { destinationOf, peerOf, hostPort, headerSize, parseHeader } from './address.js'
import { backendOf, weighted } from './backend.js'
import { hashOf } from './affinity.js'
import { matchesHost } from './match.js'
import { newTunnel, tunnel } from './tcp-client.js'
import { hostName, hasUnknown, isUnknown, kindOf, passthrough, serverBackend } from './egress.js'
import { takeRequests } from './outbound-http.js'
import { newRequests } from './requests.js'
import { connectionEnded } from './outbound-log.js'
import { IDLE, MOST, release, slow } from './edge.js'
import { terminate } from './termination.js'
import { threads } from './shared.js'

var PORT = 15001
var KNOWN = '127.0.0.1:15004', OUTSIDE = '127.0.0.1:15005', AGENT = '127.0.0.1:15902'
// How many seconds a client may take to send a server name, on ports where it decides.
var HELLO = 5
var HANDSHAKE = 22

var $connection
var $handed

// What this listens at, by address and port.
var open = {}

// listen accepts the connections that the documents ask for. It is called after each change.
export function listen() {
  var wanted = {}
  if (settings() && settings().gateway) {
    gatewayPorts().forEach(
      function (destination) {
        // This address is for clients of IPv4 too.
        var address = destination.addresses.find(a => a.indexOf(':') >= 0) || destination.addresses[0]
        wanted[hostPort(address, destination.port)] = { address: destination.addresses[0], port: destination.port }
      }
    )
  } else {
    listenToApplication()
  }
  Object.keys(open).forEach(
    function (at) {
      if (wanted[at]) return
      delete open[at]
      pipy.listen(at, null)
    }
  )
  Object.keys(wanted).forEach(
    function (at) {
      if (open[at]) return
      open[at] = true
      try {
        pipy.listen(at, { idleTimeout: IDLE, maxConnections: Math.ceil(MOST / threads) }, clientsOf(wanted[at]))
      } catch (error) {
        console.error(`cannot listen at ${at}:`, (error && error.message) || `${error}`)
      }
    }
  )
}

var listening = false

// listenToApplication starts accepting redirected connections, by IPv6 where the machine has it.
function listenToApplication() {
  listenBack()
  if (listening) return
  listening = true
  var options = { transparent: true, idleTimeout: 0 }
  try {
    pipy.listen(`[::]:${PORT}`, options, connections)
  } catch (error) {
    pipy.listen(`0.0.0.0:${PORT}`, options, connections)
  }
}

var listensBack = false

// listenBack starts accepting connections from the agent once it gets any.
function listenBack() {
  if (listensBack || !hasUnknown()) return
  listensBack = true
  pipy.listen(KNOWN, { idleTimeout: 0 }, handedBack(false))
  pipy.listen(OUTSIDE, { idleTimeout: 0 }, handedBack(true))
}

var connections = pipeline($=>$
  .onStart(
    function (inbound) {
      $connection = accept(destinationOf(inbound), peerOf(inbound), inbound.remotePort, false)
      return new Data
    }
  )
  .pipe(() => handle)
)

// clientsOf returns a pipeline for the connections to a port of a gateway.
function clientsOf(to) {
  return pipeline($=>$
    .onStart(
      function (inbound) {
        $connection = accept(to, peerOf(inbound), inbound.remotePort, true)
        $connection.edge = true
        return new Data
      }
    )
    .insert(() => slow($connection))
    .pipe(() => handle)
    .onEnd(() => release($connection))
  )
}

var handle = pipeline($=>$
  .pipe(() => $connection.kind, {
    secure: $=>$.pipe(() => greet),
    http: $=>$.pipe(() => takeRequests(), () => [$connection]),
    tls: $=>$.pipe(() => inspect),
    tcp: $=>$.pipe(tunnel, () => [$connection.tunnel]),
    unknown: $=>$.connectProxyProtocol(() => $connection.header).to($=>$.connect(AGENT, { idleTimeout: 0 })),
    closed: $=>$.replaceStreamStart(() => new StreamEnd('ConnectionReset')).replaceData(() => undefined),
  })
  // One for the agent is logged when it has been handed back.
  .onEnd(() => $connection.kind === 'unknown' || connectionEnded($connection))
)

// inside handles what is inside the TLS of a client of a gateway.
var inside = pipeline($=>$
  .onStart(
    function (connection) {
      $connection = connection
      if (connection.destination.protocol !== 'http') connection.tunnel = connection.destination.servers ? tunnelTo(connection) : tunnelOf(connection.destination, connection.peer)
      return new Data
    }
  )
  .pipe(() => $connection.tunnel ? tunnel : takeRequests(), () => [$connection.tunnel || $connection])
)

// handedBack takes connections from the agent. It reads the header itself: Pipy's own filter
// loses the end of what the client sends. Nothing is passed on before the header is complete,
// so the pipeline of the connection starts after that.
function handedBack(leaves) {
  return pipeline($=>$
    .onStart(
      function () {
        $handed = { leaves, data: new Data }
        $connection = accept(null, '', 0, leaves)
      }
    )
    .replaceData(data => $handed ? afterHeader(data) : data)
    .pipe(() => handle)
  )
}

// afterHeader returns what follows the header, or nothing before it is complete.
function afterHeader(data) {
  var all = $handed.data
  all.push(data)
  var size = headerSize(all)
  if (size < 0 || all.size < size) return
  var header = parseHeader(all.shift(size).toArray())
  if (header) $connection = accept(header.to, header.peer, header.port, $handed.leaves)
  $handed = null
  return all
}

// accept decides how a connection is handled. One that leaves the mesh is not for the agent.
function accept(to, peer, port, leaves) {
  var connection = {
    to, peer, remote: hostPort(peer, port), header: null, begun: Date.now(),
    kind: 'closed', tunnel: null, requests: new Set, ...newRequests(), edge: false, end: null, timer: null, serverName: '', first: -1, decide: null, destination: null, named: false, secured: false, failed: false, listener: '',
  }
  if (!to || !settings()) return connection
  var destination = destinationAt(to.address, to.port)
  if (destination) {
    if (destination.certificates) {
      connection.kind = 'secure'
      connection.destination = destination
    } else if (destination.protocol === 'http') {
      connection.kind = 'http'
    } else if (destination.servers) {
      connection.kind = 'tls'
      connection.destination = destination
    } else {
      into(connection, tunnelOf(destination, peer))
    }
    return connection
  }
  if (settings().gateway) return connection
  if (!leaves && isUnknown(to)) {
    connection.kind = 'unknown'
    connection.header = {
      version: 2, command: 'PROXY', protocol: to.address.indexOf(':') < 0 ? 'TCP4' : 'TCP6',
      sourceAddress: peer, sourcePort: port, targetAddress: to.address, targetPort: to.port,
    }
    return connection
  }
  switch (kindOf(to)) {
    case 'http':
      connection.kind = 'http'
      break
    case 'tls':
      connection.kind = 'tls'
      break
    case 'passthrough':
      into(connection, newTunnel(passthrough(to)))
      break
  }
  return connection
}

function tunnelOf(destination, peer) {
  return newTunnel(backendOf(weighted(destination.backends)), hashOf(destination.hashOn, null, peer))
}

function into(connection, t) {
  connection.tunnel = t
  connection.kind = 'tcp'
}

// inspect waits for the server name in the ClientHello. A client that sends none in time,
// or does not speak TLS, is treated as one without a server name.
var inspect = pipeline($=>$
  .handleData(data => look($connection, data))
  .handleTLSClientHello(hello => named($connection, (hello.serverNames || [])[0]))
  .wait(() => decided($connection))
  .pipe(tunnel, () => [$connection.tunnel])
)

// greet is inspect for connections whose TLS ends here.
var greet = pipeline($=>$
  .handleData(data => look($connection, data))
  .handleTLSClientHello(hello => named($connection, (hello.serverNames || [])[0]))
  .wait(() => decided($connection))
  .pipe(() => terminate($connection, inside), () => [$connection])
)

function decided(connection) {
  return new Promise(
    function (settle) {
      connection.decide = settle
      new Timeout(HELLO).wait().then(() => named(connection, ''))
    }
  )
}

function look(connection, data) {
  if (data.size === 0 || connection.first >= 0) return
  connection.first = new Data(data).shift(1).toArray()[0]
  if (connection.first !== HANDSHAKE) named(connection, '')
}

function named(connection, name) {
  if (connection.named) return
  connection.named = true
  connection.serverName = hostName(name)
  if (connection.kind === 'tls') connection.tunnel = tunnelTo(connection)
  if (connection.decide) connection.decide()
}

// tunnelTo returns the tunnel of a connection with a server name.
function tunnelTo(connection) {
  var destination = connection.destination
  if (!destination) return newTunnel(serverBackend(connection.to, connection.serverName))
  var server = destination.servers.find(s => matchesHost(s.host, connection.serverName))
  return newTunnel(server ? backendOf(weighted(server.backends)) : null, hashOf(destination.hashOn, null, connection.peer))
}
