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

// sessions is how many there have been.
var sessions = 0

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

// newSession returns a session with the endpoint. Kind is "http1", "http2" or "tcp". The
// function is called with the session once when it has ended. It must not be a closure
// over the session: PipyJS counts references, and what refers to itself is never freed.
//
// Pipy could leave the version of HTTP open until ALPN has chosen, but crashes if the
// request ends before: so an endpoint that does not speak HTTP/2 ends the session, which
// then is noted in endpoint.http1.
export function newSession(backend, endpoint, kind, onEnd) {
  return {
    id: ++sessions, backend, endpoint, kind, connectTimeout: backend.policy.connectTimeout || CONNECT_TIMEOUT, onEnd, user: null,
    state: 'new', opened: false, refused: false, failure: '', outbound: null, version: kind === 'http2' ? 2 : 1, uses: 0,
  }
}

function open(session) {
  session.state = 'open'
  session.opened = true
}

// close ends the session in both directions. It does so a moment later: within an event
// of its own the filters would be reset that are just at work, and while a pipeline ends
// an event for it would have Pipy free it twice, and give it to two connections.
export function close(session) {
  var outbound = session.outbound
  end(session, 'closed')
  if (outbound) closeLater(outbound)
}

// refuseTo ends a session before anything is sent to the peer.
function refuseTo(session, why) {
  session.refused = true
  session.failure = why
  close(session)
}

function closeLater(outbound) {
  new Timeout(0).wait().then(() => outbound.close())
}

// end is called with why a session ended, once or more often: the first reason counts.
function end(session, failure) {
  if (session.state === 'ended') return
  session.failure = session.failure || failure
  session.state = 'ended'
  session.outbound = null
  var onEnd = session.onEnd
  session.onEnd = null
  if (onEnd) onEnd(session)
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
  .onEnd(() => end($session, 'closed'))
)

var refuse = pipeline($=>$
  .replaceStreamStart(() => new StreamEnd('ConnectionRefused'))
  .replaceData(() => undefined)
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
    closeLater(outbound)
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
      onState: tls => handshake($session, tls),
    }).to($=>$
      .replaceData(data => $session.refused ? undefined : data)
      .pipe(connect)
    )
  )
  return secured[kind]
}

// isExpected reports whether the certificate has the name. If that can't be told it has
// not: Pipy would go on after an error.
function isExpected(session, peer) {
  try {
    return peer.subjectAltNames.includes(session.endpoint.serverName)
  } catch (error) {
    return false
  }
}

// handshake follows a TLS handshake, in which the chain is verified. When it is done the
// peer's own certificate must have exactly the expected name, or nothing is sent: this
// is called before anything could be. (A function "verify" would be asked about each
// certificate of the chain without being told which one is the peer's, and each look at
// the names of one leaves some bytes behind in Pipy.)
function handshake(session, tls) {
  switch (tls.state) {
    case 'connected':
      if (!isExpected(session, tls.peer)) {
        refuseTo(session, 'the peer is somebody else')
      } else if (session.state === 'connecting') {
        if (session.kind === 'http2' && tls.protocol !== 'h2') {
          session.endpoint.http1 = true
          refuseTo(session, 'the peer does not speak HTTP/2')
        } else {
          open(session)
        }
      }
      break
    case 'closed':
      if (session.state === 'connecting') session.failure = `TLS: ${tls.error || 'the peer hung up'}`
      close(session)
      break
  }
}
