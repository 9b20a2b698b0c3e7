// Connections to the pod's application, which are redirected to port 15003.
//
// A connection is mesh TLS, which is recognized by its server name, other TLS (the
// application's own or that of a caller outside the mesh), or plaintext. The handshake of
// mesh TLS verifies only the chain; authorization follows afterwards, by the documents, so
// that a change of them disturbs no connection.

import { settings, inbound, onChange } from './config.js'
import { identity, onIdentity } from './identity.js'
import { destinationOf, peerOf, hostPort } from './address.js'
import { clientAuthentication, decide, identityOf, mode, portAt, securityOf, takesPlaintext, wouldRefuse } from './authorization.js'
import { newCall, stream } from './application.js'
import { take } from './ratelimit.js'
import { threads } from './shared.js'
import { requests } from './inbound-http.js'
import { newRequests } from './requests.js'
import { count, change } from './metrics.js'
import { countConnection, countRefusal } from './telemetry.js'
import { log, timestamp } from './accesslog.js'

var PORT = 15003

// Timeouts in seconds: for the first bytes of a client; for those of one that may be
// silent because the server speaks first; and for the TLS handshake.
var HELLO = 10, SILENCE = 1, HANDSHAKE_TIME = 10
// How many inbound connections there may be, on all threads together, so that outbound
// ones have enough file descriptors.
var MOST = 10000
// How many bytes a client may send before its ClientHello is complete.
var LARGEST_HELLO = 64 * 1024

var HANDSHAKE = 0x16

var $connection

// Pipelines that terminate TLS. Identity and TLS settings are fixed when a pipeline is
// created, so each change discards these; existing connections keep theirs.
var terminators = {}
var listening = false

onIdentity(() => terminators = {})
onChange(
  function (names) {
    if (names['config/settings.json']) terminators = {}
  }
)

// listen starts accepting connections.
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
  .insert(() => awaitFirstBytes($connection))
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
    security: 'plaintext', serverName: '', peer: '', secured: false, gone: false, timer: null, http: false, call: null, failure: '', refused: '', audited: false, received: 0, sent: 0,
    calls: new Set, ...newRequests(),
  }
}

// Returns an event after a client has been silent for too long: either an empty one, which
// starts a plaintext connection, or the end.
function awaitFirstBytes(connection) {
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

// waitFor waits that many seconds, or until the connection is classified.
function waitFor(connection, seconds) {
  connection.timer = new Timeout(seconds)
  return connection.timer.wait().catch(() => undefined)
}

// settle marks the connection as classified. Its timer must stop, since it would keep the
// connection in memory.
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

// Returns the pipeline for the connection, or nothing as long as more bytes are needed.
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

// Reports whether no client speaks before the application does: neither peers, which know
// that this pod has no mesh TLS, nor callers outside the mesh.
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
  // Clients outside the mesh may offer h2 although the application does not support it.
  if (asked) return accept(connection, port, terminator(asked === 'certificate', !http ? null : port.http2 ? ['h2', 'http/1.1'] : ['http/1.1']))
  if (mode().permissive && port.access.anyone) return accept(connection, port, admission)
  return refuse(connection, 'other TLS')
}

// Accepts the connection, unless the rate limit of new connections is exceeded.
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

// Returns the pipeline that terminates TLS, or null if there is no identity. It requires a
// client certificate of the mesh, or requests none.
function terminator(asked, alpn) {
  var present = identity()
  if (!present) return null
  // Pipy's text form of an array does not contain the elements.
  var key = `${asked} ${alpn ? alpn.join() : ''}`
  if (terminators[key]) return terminators[key]
  var tls = settings().tls
  var trustDomain = settings().trustDomain
  var options = {
    minVersion: tls.min,
    maxVersion: tls.max,
    ciphers: tls.ciphers || undefined,
    // Pipy calls this before it knows the server name, and again afterwards.
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
      // Pipy forwards flush events before the handshake is done.
      .pipe(() => afterHandshake($connection), () => [$connection])
    )
    // The timeout starts with the server's first bytes.
    .insert(() => handshakeTime($connection))
  )
}

// Returns the end if the handshake is not done in time: until then the client is
// unauthenticated.
function handshakeTime(connection) {
  if (connection.secured) return nothing
  return waitFor(connection, HANDSHAKE_TIME).then(() => connection.secured || connection.failure || connection.gone ? nothing : new StreamEnd('ReadTimeout'))
}

// handshake handles the state changes of a TLS session. No data of the client is forwarded
// before the handshake is done.
function handshake(connection, session, trustDomain) {
  switch (session.state) {
    case 'connected':
      connection.secured = true
      stopWaiting(connection)
      connection.peer = identityOf(session.peer, trustDomain)
      // Pipy's two parsers must have read the same server name from the ClientHello.
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

// admission forwards a connection to the application if its client is authorized.
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
  var port = portAt(connection.number)
  if (decide(mode(), port, connection) !== null) {
    connection.audited = wouldRefuse(mode(), port, connection)
    return true
  }
  connection.refused = 'rbac_access_denied'
  return false
}

function callOf(connection) {
  if (connection.call) return connection.call
  var call = newCall(connection.address, connection.number, null, false)
  call.caller = callerOf(connection)
  call.onConnected = forwarded
  return connection.call = call
}

// callerOf returns what is counted of a connection's client.
function callerOf(connection) {
  var peer = connection.peer
  var tls = !connection.secured ? 'none' : peer ? 'mutual' : 'tls'
  return { reporter: 'destination', peer, service: '', tls, audited: connection.audited }
}

// forwarded counts a connection that has reached the application.
function forwarded(call) {
  call.counts = countConnection({ ...call.caller, received: call.received, sent: call.sent })
}

// refusalOf counts a connection that is over and was not forwarded, unless its requests are
// counted. It returns the reason if it was refused, or ''.
function refusalOf(connection, call) {
  if (call && call.connected) return ''
  return countRefusal({ ...callerOf(connection), details: connection.refused, failure: connection.failure, flags: call ? 'UF' : '' })
}

// ended counts and logs a connection. Connections with requests are logged by request.
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
  var reason = settings() ? refusalOf(connection, call) : ''
  if (!reason && (connection.http || connection.received === 0 && !call)) return
  log(() => ({
    bytes_received: call ? call.received : connection.received,
    bytes_sent: call ? call.sent : 0,
    connection_close_details: connection.refused,
    downstream_failure: connection.failure,
    downstream_peer: connection.peer,
    downstream_remote: connection.remote,
    duration: Date.now() - connection.begun,
    reason,
    requested_server_name: connection.serverName,
    response_code: 0,
    response_flags: call && call.failure ? 'UF' : connection.refused || connection.failure ? 'NR' : '-',
    start_time: timestamp(connection.begun),
    upstream_cluster: call ? 'inbound-tcp' : '',
    upstream_failure: call ? call.failure : '',
    upstream_host: call ? call.host : '',
  }))
}
