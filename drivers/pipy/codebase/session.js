// Connections to endpoints: with mutual TLS, or in plaintext if an endpoint has no server
// name.
//
// A session is the object of a connection. Its state is "new", "connecting", "open" and
// finally "ended". HTTP sessions are opened by the muxHTTP filter, TCP sessions by the
// connection that they carry. No data is sent before the peer has proved its identity.

import { settings, onChange } from './config.js'
import { identity, onIdentity } from './identity.js'
import { newAnswerReader, openTunnel, read } from './framing.js'
import { newWatch, watch } from './frames.js'
import { newShape } from './shape.js'

// The ALPN protocols that are offered.
var protocols = {
  http1: ['http/1.1'],
  http2: ['h2', 'http/1.1'],
  tcp: undefined,
}

var CONNECT_TIMEOUT = 5
// Linux ends a connection whose peer has acknowledged nothing for so long: 25,000 milliseconds, as
// a little-endian number. It notices that up to some seconds later.
var SOL_TCP = 6, TCP_USER_TIMEOUT = 18, VANISHED = [0xa8, 0x61, 0, 0]

var $session

// sessions counts the sessions, for their ids.
var sessions = 0

// secured are the pipelines with mutual TLS, by kind. The roots of a pipeline can't be
// changed, so each new identity discards these; existing connections keep theirs.
var secured = {}

onIdentity(() => secured = {})
onChange(
  function (names) {
    if (names['config/settings.json']) secured = {}
  }
)

// newSession returns a session with the endpoint. Kind is "http1", "http2" or "tcp". The
// functions are called once, with the session: onEnd when it has ended, and onOpen, which
// is optional, when it has opened. They must not be closures over the session: PipyJS
// counts references and never frees a cycle.
//
// Pipy could leave the HTTP version open until ALPN has chosen one, but crashes if the
// request ends before that. So a session with an endpoint that does not speak HTTP/2 is
// ended, and endpoint.http1 is set for the next one.
export function newSession(backend, endpoint, kind, onEnd, onOpen) {
  var reader = newAnswerReader()
  if (kind !== 'http1') openTunnel(reader, kind === 'http2')
  return {
    reader, watch: newWatch(false), shape: newShape(),
    id: ++sessions, backend, endpoint, kind, connectTimeout: backend.policy.connectTimeout || CONNECT_TIMEOUT, onEnd, onOpen, user: null,
    state: 'new', opened: false, refused: false, failure: '', outbound: null, version: kind === 'http2' ? 2 : 1, uses: 0,
  }
}

function open(session) {
  session.state = 'open'
  session.opened = true
  if (session.onOpen) session.onOpen(session)
}

// close ends the session in both directions, after the current event: closing within an
// event of the same connection would reset filters that are running, and an event for a
// pipeline that is ending makes Pipy free it twice and give it to two connections.
export function close(session) {
  var outbound = session.outbound
  end(session, 'closed')
  if (outbound) closeLater(outbound)
}

// receive checks what the peer sends.
export function receive(session, data) {
  var passed = session.reader.http2 ? watch(session.watch, data) : read(session.reader, data)
  if (session.reader.failure && session.state !== 'ended') {
    session.failure = session.reader.failure
    close(session)
  } else if (session.watch.leaving && !session.user && session.state !== 'ended') {
    close(session)
  }
  return passed
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

// end marks a session as ended. Of several calls the first reason counts.
function end(session, failure) {
  if (session.state === 'ended') return
  session.failure = session.failure || failure
  session.state = 'ended'
  session.outbound = null
  var onEnd = session.onEnd
  session.onEnd = null
  if (onEnd) onEnd(session)
}

// carry is the pipeline of the session's connection. It is started with the session.
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
    if (outbound.state === 'open') outbound.socket.setRawOption(SOL_TCP, TCP_USER_TIMEOUT, new Data(VANISHED))
    if (outbound.state === 'connected' && !session.endpoint.serverName) open(session)
  }
}

// secure returns the pipeline for mutual TLS with the current identity.
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

// isExpected reports whether the certificate has the endpoint's server name. An error
// counts as no: Pipy would continue after it.
function isExpected(session, peer) {
  try {
    return peer.subjectAltNames.includes(session.endpoint.serverName)
  } catch (error) {
    return false
  }
}

// handshake handles the state changes of a TLS session, whose chain OpenSSL verifies. When
// the handshake is done, the peer's own certificate must have exactly the expected name;
// this runs before any data can be sent. (The option "verify" is called for each
// certificate of the chain without saying which one is the peer's, and each access to a
// certificate's names leaks some bytes in Pipy.)
function handshake(session, tls) {
  switch (tls.state) {
    case 'connected':
      if (!isExpected(session, tls.peer)) {
        refuseTo(session, 'the peer has another identity')
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
