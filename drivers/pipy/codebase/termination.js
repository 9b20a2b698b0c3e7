// TLS of clients outside the mesh, which ends at a gateway.
//
// The certificates are files with the private key, which are never logged or written. One that can't
// be used is an error of the version that brought it.

import { certificateText } from './config.js'
import { hostName } from './egress.js'
import { matchesHost } from './match.js'

// How many seconds the handshake may take.
var TIME = 10

var ALPN = ['h2', 'http/1.1']

// The parsed certificates by name, with the texts that they are of.
var parsed = {}
// The pipelines by what they forward to clients: one for HTTP, another for other protocols.
var terminators = {}

var $connection

// certificateFor returns the entry of a destination's certificates for a server name, or undefined. The
// name is in lower case, without a final dot, and empty for clients that send none.
export function certificateFor(destination, name) {
  return destination.certificates.find(c => c.host === '*' || name && matchesHost(c.host, name))
}

// listenerFor returns the host of the listener to which a host of the destination belongs, or
// undefined.
export function listenerFor(destination, host) {
  var all = destination.listeners
  if (!all || !host) return
  return all.find(l => l === '*' || l === host || host !== '*' && matchesHost(l, host))
}

// terminate returns the pipeline that ends the TLS of a connection, whose server name is known, and passes what is inside on to the
// pipeline inner.
export function terminate(connection, inner) {
  var kind = connection.destination.protocol === 'http' ? 'http' : 'tcp'
  if (terminators[kind]) return terminators[kind]
  var options = {
    minVersion: 'TLS1.2',
    maxVersion: 'TLS1.3',
    ciphers: 'ECDHE+AESGCM:ECDHE+CHACHA20',
    // Pipy calls this at once, and again with the server name, when another certificate of the same kind
    // would lose its key.
    certificate: name => name ? undefined : present($connection),
    onState: session => handshake($connection, session),
  }
  if (kind === 'http') options.alpn = ALPN
  return terminators[kind] = pipeline($=>$
    .onStart(connection => void ($connection = connection))
    .acceptTLS(options).to($=>$
      // Pipy forwards flush events before the handshake is done.
      .pipe(() => $connection.secured ? inner : $connection.failed ? refused : undefined, () => [$connection])
    )
    .insert(() => handshakeTime($connection))
  )
}

var refused = pipeline($=>$
  .replaceStreamStart(() => new StreamEnd('ConnectionReset'))
  .replaceData(() => undefined)
)

// present returns the certificate for the server name of a connection, or undefined, without which the
// handshake fails.
function present(connection) {
  var entry = certificateFor(connection.destination, connection.serverName)
  return entry ? certificate(entry.name) : undefined
}

function certificate(name) {
  var text = certificateText(name)
  if (!text) return
  var former = parsed[name]
  if (!former || former.text !== text) {
    former = parsed[name] = { text, pair: { cert: new crypto.CertificateChain(text), key: new crypto.PrivateKey(text) } }
  }
  return former.pair
}

function handshake(connection, session) {
  switch (session.state) {
    case 'connected':
      var entry = certificateFor(connection.destination, connection.serverName)
      // Pipy's two parsers must have read the same server name from the ClientHello.
      if (entry && hostName(session.hostname) === connection.serverName) {
        connection.listener = entry.listener
        connection.secured = true
      } else {
        connection.failed = true
      }
      break
    case 'closed':
      if (!connection.secured) connection.failed = true
      break
  }
}

// handshakeTime returns the end if the handshake is not done in time.
function handshakeTime(connection) {
  return new Timeout(TIME).wait().then(() => connection.secured || connection.failed ? new Data : new StreamEnd('ReadTimeout'))
}
