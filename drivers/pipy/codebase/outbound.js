// Connections of the application, all of which are redirected to port 15001.
//
// The original destination decides: a connection goes to a destination of the mesh, or
// outside the mesh if that is allowed. All others are closed.

import { destinationAt, settings } from './config.js'
import { destinationOf, peerOf, hostPort } from './address.js'
import { backendOf, weighted } from './backend.js'
import { hashOf } from './affinity.js'
import { matchesHost } from './match.js'
import { newTunnel, tunnel } from './tcp-client.js'
import { hostName, kindOf, passthrough, serverBackend } from './egress.js'
import { takeRequests } from './outbound-http.js'
import { connectionEnded } from './outbound-log.js'

var PORT = 15001
// How many seconds a client may take to send a server name, on ports where it decides.
var HELLO = 5
var HANDSHAKE = 22

var $connection

// listen starts accepting connections, by IPv6 where the machine has it.
export function listen() {
  var options = { transparent: true, idleTimeout: 0 }
  try {
    pipy.listen(`[::]:${PORT}`, options, connections)
  } catch (error) {
    pipy.listen(`0.0.0.0:${PORT}`, options, connections)
  }
}

var connections = pipeline($=>$
  .onStart(
    function (inbound) {
      $connection = accept(inbound)
      return new Data
    }
  )
  .pipe(() => $connection.kind, {
    http: $=>$.pipe(() => takeRequests(), () => [$connection]),
    tls: $=>$.pipe(() => inspect),
    tcp: $=>$.pipe(tunnel, () => [$connection.tunnel]),
    closed: $=>$.replaceStreamStart(() => new StreamEnd('ConnectionReset')).replaceData(() => undefined),
  })
  .onEnd(() => connectionEnded($connection))
)

// accept decides how a connection is handled.
function accept(inbound) {
  var to = destinationOf(inbound)
  var peer = peerOf(inbound)
  var connection = {
    to, peer, remote: hostPort(peer, inbound.remotePort), begun: Date.now(),
    kind: 'closed', tunnel: null, requests: new Set, broken: false, serverName: '', first: -1, decide: null, destination: null,
  }
  if (!to || !settings()) return connection
  var destination = destinationAt(to.address, to.port)
  if (destination) {
    if (destination.protocol === 'http') {
      connection.kind = 'http'
    } else if (destination.servers) {
      connection.kind = 'tls'
      connection.destination = destination
    } else {
      into(connection, newTunnel(backendOf(weighted(destination.backends)), hashOf(destination.hashOn, null, peer)))
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
  if (connection.tunnel) return
  connection.serverName = hostName(name)
  connection.tunnel = tunnelTo(connection)
  if (connection.decide) connection.decide()
}

// tunnelTo returns the tunnel of a connection with a server name.
function tunnelTo(connection) {
  var destination = connection.destination
  if (!destination) return newTunnel(serverBackend(connection.to, connection.serverName))
  var server = destination.servers.find(s => matchesHost(s.host, connection.serverName))
  return newTunnel(server ? backendOf(weighted(server.backends)) : null, hashOf(destination.hashOn, null, connection.peer))
}
