// Connections to the pod's application, which are redirected to port 15003.
//
// A connection is mesh TLS, which its server name tells, the application's own TLS or
// that of a caller from outside the mesh, or plaintext. The handshake of mesh TLS
// verifies the chain; who the client is, and what it may do, is decided afterwards by
// the documents, so that a change of them disturbs no connection.

import { settings, inbound, onChange } from './config.js'
import { identity, onIdentity } from './identity.js'
import { destinationOf, peerOf, hostPort } from './address.js'
import { clientAuthentication, decide, identityOf, mode, portAt, securityOf, takesPlaintext } from './authorization.js'
import { newCall, stream } from './application.js'
import { take } from './ratelimit.js'
import { threads } from './shared.js'
import { requests } from './inbound-http.js'
import { count, change } from './metrics.js'
import { log, timestamp } from './accesslog.js'

var PORT = 15003

// How long a client may take to begin TLS, in seconds, how long one is waited for that
// could be silent because the server speaks first, and how long a handshake may take.
var HELLO = 10, SILENCE = 1, HANDSHAKE_TIME = 10
// How many connections there may be, so that what the application connects to has room.
// Each thread takes its part.
var MOST = 10000
// How much a client may send before it is known what it wants.
var LARGEST_HELLO = 64 * 1024

var HANDSHAKE = 0x16

var $connection

// Pipelines that depend on the identity and the settings of TLS: they are fixed when a
// pipeline is made, so these are made anew with each change. Connections go on with
// what they began with.
var terminators = {}
var listening = false

onIdentity(() => terminators = {})
onChange(
  function (names) {
    if (names['config/settings.json']) terminators = {}
  }
)

// listen takes connections from now on.
export function listen() {
  if (listening) return
  listening = true
  var options = { transparent: true, idleTimeout: 0, maxConnections: Math.ceil(MOST / threads) }
  try {
    pipy.listen(`[::]:${PORT}`, options, connections)
  } catch (error) {
    pipy.listen(`0.0.0.0:${PORT}`, options, connections)
  }
}

var connections = pipeline($=>$
  .onStart(
    function (socket) {
      $connection = newConnection(socket)
      return new Data
    }
  )
  .handleData(data => void ($connection.received += data.size))
  .handleTLSClientHello(hello => void ($connection.hello = hello))
  .insert(() => patience($connection))
  .pipe(evt => classify($connection, evt), () => [$connection])
  .handleData(data => void ($connection.sent += data.size))
  .onEnd(() => ended($connection))
)

function newConnection(socket) {
  var destination = destinationOf(socket)
  var number = destination ? destination.port : 0
  return {
    address: destination ? destination.address : '', number, source: peerOf(socket), remote: hostPort(peerOf(socket), socket.remotePort),
    begun: Date.now(), hello: null, first: undefined, silent: false, classified: false,
    security: 'plaintext', serverName: '', peer: '', secured: false, gone: false, timer: null, http: false, last: false, broken: false, call: null, failure: '', refused: '', received: 0, sent: 0,
  }
}

// Returns what comes when the client has said nothing for a while: a sign to go on, or
// the end.
function patience(connection) {
  if (connection.classified) return nothing
  var brief = inbound() && connection.number && mayBePlaintext(connection)
  return waitFor(connection, brief ? SILENCE : HELLO).then(
    function () {
      if (connection.classified) return nothing
      if (!brief) return new StreamEnd('ReadTimeout')
      if (connection.first === undefined) {
        connection.silent = true
        return new Data
      }
      return waitFor(connection, HELLO - SILENCE).then(() => connection.classified ? nothing : new StreamEnd('ReadTimeout'))
    }
  )
}

var nothing = []

// waitFor waits so many seconds, or until the connection is known.
function waitFor(connection, seconds) {
  connection.timer = new Timeout(seconds)
  return connection.timer.wait().catch(() => undefined)
}

// settle notes that the connection is known. What waits for it would keep it.
function settle(connection) {
  connection.classified = true
  connection.hello = null
  stopWaiting(connection)
}

function stopWaiting(connection) {
  var timer = connection.timer
  connection.timer = null
  if (timer) timer.cancel()
}

function mayBePlaintext(connection) {
  return takesPlaintext(mode(), portAt(connection.number), connection.source)
}

// Returns the pipeline for the connection, or nothing as long as it is not known.
function classify(connection, evt) {
  if (connection.classified) return
  if (evt instanceof StreamEnd) return refuse(connection, 'closed before a request')
  if (!inbound() || !settings() || !connection.number) return refuse(connection, 'not redirected')
  var port = portAt(connection.number)
  if (evt instanceof Data && evt.size > 0 && connection.first === undefined) {
    connection.first = new Data(evt).shift(1).toArray()[0]
  }
  if (connection.first === HANDSHAKE) {
    if (connection.hello) return classifyTLS(connection, port)
    return connection.received > LARGEST_HELLO ? refuse(connection, 'no ClientHello') : undefined
  }
  var speaks = connection.first !== undefined || connection.silent || isSilent(port)
  if (!speaks) return
  if (!mayBePlaintext(connection)) return refuse(connection, 'plaintext')
  if (port.protocol === 'http') return accept(connection, port, requests())
  return accept(connection, port, admission)
}

// Reports whether nobody speaks before the application does: neither peers, which know
// that this pod speaks no mesh TLS, nor callers from outside.
function isSilent(port) {
  return settings().plaintext && port.protocol === 'server-first' && !(port.ingress || []).some(r => r.tls)
}

function classifyTLS(connection, port) {
  connection.serverName = ((connection.hello.serverNames || [])[0] || '').toLowerCase()
  connection.security = settings().plaintext ? 'other TLS' : securityOf(connection.serverName, settings().trustDomain)
  var http = port.protocol === 'http'
  if (connection.security === 'mesh TLS') {
    return accept(connection, port, terminator(true, http ? ['h2', 'http/1.1'] : null))
  }
  var asked = clientAuthentication(port, connection)
  // What a client from outside can speak says nothing about the application.
  if (asked) return accept(connection, port, terminator(asked === 'certificate', !http ? null : port.http2 ? ['h2', 'http/1.1'] : ['http/1.1']))
  if (mode().permissive && port.access.anyone) return accept(connection, port, admission)
  return refuse(connection, 'other TLS')
}

// Takes the connection, unless there are too many new ones.
function accept(connection, port, pipeline) {
  if (port.connectionLimit && !take(`${connection.number}/connections`, port.connectionLimit)) {
    count('envoy_rate_limit_rate_limited', {})
    return refuse(connection, 'too many connections')
  }
  if (pipeline === null) return refuse(connection, 'no identity')
  settle(connection)
  connection.http = port.protocol === 'http' && pipeline !== admission
  change('envoy_listener_downstream_cx_active', labelsOf(connection), 1)
  count('envoy_listener_downstream_cx_total', labelsOf(connection))
  connection.counted = true
  return pipeline
}

function labelsOf(connection) {
  return { envoy_listener_address: 'inbound', envoy_port: connection.number }
}

function refuse(connection, why) {
  settle(connection)
  connection.refused = why
  return closing
}

var closing = pipeline($=>$
  .replaceStreamStart(() => new StreamEnd('ConnectionReset'))
  .replaceData(() => undefined)
)

// Returns the pipeline that ends TLS, or null if there is no identity. It asks for a
// certificate of the mesh, or for none.
function terminator(asked, alpn) {
  var present = identity()
  if (!present) return null
  // The text of an array says nothing of what is in it.
  var key = `${asked} ${alpn ? alpn.join() : ''}`
  if (terminators[key]) return terminators[key]
  var tls = settings().tls
  var trustDomain = settings().trustDomain
  var options = {
    minVersion: tls.min,
    maxVersion: tls.max,
    ciphers: tls.ciphers || undefined,
    // Pipy asks before it knows the server name, and again when it does.
    certificate: name => name || !$connection.serverName ? present.certificate : undefined,
    onState: session => handshake($connection, session, trustDomain),
  }
  if (alpn) options.alpn = alpn
  if (asked) {
    options.trusted = present.trusted
    options.verify = ok => ok
  }
  return terminators[key] = pipeline($=>$
    .onStart(connection => void ($connection = connection))
    .acceptTLS(options).to($=>$
      // Pipy passes on signs of flushing before the handshake is done.
      .pipe(() => afterHandshake($connection), () => [$connection])
    )
    // From the server's first words on.
    .insert(() => handshakeTime($connection))
  )
}

// Returns the end, if the handshake is not done in time. Nobody has shown a certificate
// until then.
function handshakeTime(connection) {
  if (connection.secured) return nothing
  return waitFor(connection, HANDSHAKE_TIME).then(() => connection.secured || connection.failure || connection.gone ? nothing : new StreamEnd('ReadTimeout'))
}

// handshake follows a TLS handshake, which is done before anything of the client's is
// passed on.
function handshake(connection, session, trustDomain) {
  switch (session.state) {
    case 'connected':
      connection.secured = true
      stopWaiting(connection)
      connection.peer = identityOf(session.peer, trustDomain)
      // Two readers of one ClientHello must have read the same.
      if ((session.hostname || '').toLowerCase() !== connection.serverName) connection.failure = 'server name'
      break
    case 'closed':
      if (!connection.secured) connection.failure = session.error || 'handshake'
      break
  }
}

function afterHandshake(connection) {
  if (connection.failure) return closing
  if (!connection.secured) return
  return connection.http ? requests() : admission
}

// admission passes a connection on to the application if its client may connect.
var admission = pipeline($=>$
  .onStart(
    function (connection) {
      $connection = connection
      return new Data
    }
  )
  .pipe(() => mayConnect($connection) ? stream : closing, () => [$connection.refused ? null : callOf($connection)])
)

function mayConnect(connection) {
  if (decide(mode(), portAt(connection.number), connection) !== null) return true
  connection.refused = 'rbac_access_denied'
  return false
}

function callOf(connection) {
  if (!connection.call) connection.call = newCall(connection.address, connection.number, null, false)
  return connection.call
}

// ended counts and logs a connection. Those with requests are logged with these.
function ended(connection) {
  connection.gone = true
  settle(connection)
  if (connection.counted) change('envoy_listener_downstream_cx_active', labelsOf(connection), -1)
  if (connection.failure) count('envoy_listener_ssl_connection_error', labelsOf(connection))
  if (connection.refused === 'rbac_access_denied') count('envoy_rbac_denied', {})
  var call = connection.call
  if (call) {
    var labels = { envoy_cluster_name: 'inbound-tcp' }
    count('envoy_cluster_upstream_cx_total', labels)
    count('envoy_cluster_upstream_cx_rx_bytes_total', labels, call.sent)
    count('envoy_cluster_upstream_cx_tx_bytes_total', labels, call.received)
    if (call.failure) count('envoy_cluster_upstream_cx_connect_fail', labels)
  }
  if (connection.http || connection.received === 0 && !call) return
  log({
    bytes_received: call ? call.received : connection.received,
    bytes_sent: call ? call.sent : 0,
    connection_close_details: connection.refused,
    downstream_failure: connection.failure,
    downstream_peer: connection.peer,
    downstream_remote: connection.remote,
    duration: Date.now() - connection.begun,
    requested_server_name: connection.serverName,
    response_code: 0,
    response_flags: call && call.failure ? 'UF' : connection.refused || connection.failure ? 'NR' : '-',
    start_time: timestamp(connection.begun),
    upstream_cluster: call ? 'inbound-tcp' : '',
    upstream_failure: call ? call.failure : '',
    upstream_host: call ? call.host : '',
  })
}
