// Connections to endpoints: in mutual TLS, or in plaintext where an endpoint has no
// server name.
//
// A session is a connection as an object. It is "new", "connecting", "open" and at last
// "ended". Sessions for HTTP are opened by the muxHTTP filter, those for TCP by the
// connection that they carry on, and nothing of a request or a connection goes out
// before the other end has proved that it is who it should be.

import { settings, onChange } from './config.js'
import { identity, onIdentity } from './identity.js'

// What is offered by ALPN.
var protocols = {
  http1: ['http/1.1'],
  http2: ['h2', 'http/1.1'],
  tcp: undefined,
}

var CONNECT_TIMEOUT = 5

var $session

// secured are the pipelines that speak mutual TLS, by kind. The roots of a pipeline
// can't be changed, so they are made anew with each identity; those who are connected
// go on with what they have.
var secured = {}

onIdentity(() => secured = {})
onChange(
  function (names) {
    if (names['config/settings.json']) secured = {}
  }
)

// newSession returns a session with the endpoint. Kind is "http1", "http2" (which falls
// back to HTTP/1.1) or "tcp". The function is called once when it has ended.
export function newSession(endpoint, kind, connectTimeout, onEnd) {
  var session = {
    endpoint, kind, connectTimeout: connectTimeout || CONNECT_TIMEOUT, onEnd,
    state: 'new', opened: false, refused: false, failure: '', outbound: null, version: kind === 'http2' ? 2 : 1, ready: true, settle: null, uses: 0,
  }
  if (endpoint.serverName) {
    session.ready = new Promise(settle => session.settle = settle)
    if (kind === 'http2') session.version = session.ready.then(() => session.negotiated)
  }
  return session
}

function open(session) {
  session.state = 'open'
  session.opened = true
}

// close ends the session in both directions. It does so a moment later: within an event
// of its own the filters would be reset that are just at work.
export function close(session) {
  var outbound = session.outbound
  end(session, 'closed')
  if (outbound) later(() => outbound.close())
}

function later(f) {
  new Timeout(0).wait().then(f)
}

// end is called with why a session ended, once or more often: the first reason counts.
function end(session, failure) {
  if (session.state === 'ended') return
  session.failure = session.failure || failure
  session.state = 'ended'
  settle(session, 1)
  session.outbound = null
  var onEnd = session.onEnd
  session.onEnd = null
  if (onEnd) onEnd(session)
}

function settle(session, version) {
  if (!session.settle) return
  var settle = session.settle
  session.settle = null
  session.negotiated = version
  settle()
}

// carry is the session's connection. It is started with the session.
export var carry = pipeline($=>$
  .onStart(
    function (session) {
      $session = session
      if (session.state === 'new') session.state = 'connecting'
      return new Data
    }
  )
  .pipe(
    function () {
      if ($session.state === 'ended') return refuse
      if (!$session.endpoint.serverName) return connect
      return identity() ? secure($session.kind) : refuse
    }
  )
  .handleStreamEnd(evt => end($session, evt.error ? `${evt.error}` : 'closed by the peer'))
  // What came before HTTP knew its version would be lost.
  .wait(() => $session.ready)
  .onEnd(() => end($session, 'closed'))
)

var refuse = pipeline($=>$
  .replaceStreamStart(() => new StreamEnd('ConnectionRefused'))
)

var connect = pipeline($=>$
  .connect(
    () => $session.endpoint.address,
    () => ({ connectTimeout: $session.connectTimeout, idleTimeout: 0, onState: outbound => connected($session, outbound) })
  )
)

function connected(session, outbound) {
  if (outbound.state === 'closed') {
    end(session, 'closed')
  } else if (session.state === 'ended') {
    later(() => outbound.close())
  } else {
    session.outbound = outbound
    if (outbound.state === 'connected' && !session.endpoint.serverName) open(session)
  }
}

// secure returns the pipeline that speaks mutual TLS with the present identity.
function secure(kind) {
  if (secured[kind]) return secured[kind]
  var present = identity()
  var tls = settings().tls
  secured[kind] = pipeline($=>$
    .connectTLS({
      minVersion: tls.min,
      maxVersion: tls.max,
      ciphers: tls.ciphers || undefined,
      certificate: present.certificate,
      trusted: present.trusted,
      alpn: protocols[kind],
      sni: () => $session.endpoint.serverName,
      verify: (ok, certificate) => ok && mayBe($session, certificate),
      onState: tls => handshake($session, tls),
    }).to($=>$
      .replaceData(data => $session.refused ? undefined : data)
      .pipe(connect)
    )
  )
  return secured[kind]
}

// mayBe refuses whoever has a name of the mesh and not the expected one. Pipy asks it
// about each certificate of the chain without saying which one it is, and those of
// authorities have no such names.
function mayBe(session, certificate) {
  var names = certificate.subjectAltNames
  return names.includes(session.endpoint.serverName) || !names.some(name => name.endsWith(`.sa.${settings().trustDomain}`))
}

// handshake follows a TLS handshake. When it is done the peer's own certificate must
// have exactly the expected name, or nothing is sent: this is called before anything
// could be.
function handshake(session, tls) {
  switch (tls.state) {
    case 'connected':
      if (!tls.peer || !tls.peer.subjectAltNames.includes(session.endpoint.serverName)) {
        session.refused = true
        session.failure = 'the peer is somebody else'
        close(session)
      } else if (session.state === 'connecting') {
        open(session)
        settle(session, tls.protocol === 'h2' ? 2 : 1)
      }
      break
    case 'closed':
      if (session.state === 'connecting') session.failure = `TLS: ${tls.error || 'the peer hung up'}`
      close(session)
      break
  }
}
