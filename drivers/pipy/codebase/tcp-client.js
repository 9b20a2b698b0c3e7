// TCP connections to backends.
//
// The endpoint is connected to as soon as the client has connected, so it does not
// matter which side speaks first.

import { choose, acquire, withdraw, observe } from './backend.js'
import { close, carry } from './session.js'
import { connectionOpened } from './outbound-log.js'

var $tunnel

// newTunnel returns a connection to an endpoint of the backend, which may be null. Hash is
// the affinity key, or undefined.
export function newTunnel(b, hash) {
  var endpoint = b && choose(b, hash)
  var t = {
    backend: b, endpoint, kind: 'tcp', granted, ended,
    session: null, failure: endpoint ? '' : 'no endpoint', received: 0, sent: 0, counts: null, left: false, release: null,
  }
  if (!endpoint) return t
  acquire(t)
  if (!t.session) {
    // A TCP connection does not wait until another one ends.
    withdraw(t)
    t.failure = 'overflow'
    return t
  }
  endpoint.requests++
  return t
}

function granted(t, session) {
  t.session = session
  session.onOpen = opened
}

// release passes on the end of what the client sends.
function release(t) {
  var settle = t.release
  t.release = null
  if (settle) settle()
}

// hold delays the end until the connection is made: an end within a handshake would end the
// handshake, and what the client has sent would be lost.
function hold(t, end) {
  if (!t.session || t.session.state === 'ended' || t.session.opened) return end
  return new Promise(settle => t.release = settle).then(() => end)
}

function opened(session) {
  var t = session.user
  if (!t) return
  t.counts = connectionOpened(t)
  release(t)
}

function ended(t) {
  release(t)
}

// tunnel forwards a connection. It is started with a result of newTunnel.
export var tunnel = pipeline($=>$
  .onStart(t => void ($tunnel = t))
  .handleData(data => sent($tunnel, data.size))
  .replaceStreamEnd(end => hold($tunnel, end))
  .pipe(() => $tunnel.session ? carry : closed, () => [$tunnel.session])
  .handleData(data => received($tunnel, data.size))
  .onEnd(() => leave($tunnel))
)

// What a tunnel sends has been received from the client.
function sent(t, size) {
  t.sent += size
  if (t.counts) t.counts.received.value += size
}

function received(t, size) {
  t.received += size
  if (t.counts) t.counts.sent.value += size
}

var closed = pipeline($=>$
  .replaceStreamStart(() => new StreamEnd('ConnectionReset'))
  .replaceData(() => undefined)
)

function leave(t) {
  if (t.left || !t.session) return
  t.left = true
  t.endpoint.requests--
  if (!t.session.opened) t.failure = t.session.failure || 'connection failure'
  observe(t.backend, t.endpoint, !t.session.opened)
  release(t)
  t.session.user = null
  close(t.session)
}
