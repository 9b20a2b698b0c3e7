// The pod's identity: its key and certificate, and the roots that verify its peers.
//
// The agent keeps them in files and replaces all of them at once. They are never logged
// or written.

var DIR = os.env.OUTRIGGER_IDENTITY_DIR || '/run/outrigger-identity'

var present = null
var listeners = []

// identity returns {certificate: {cert, key}, trusted}, or null as long as there is none.
// Trusted is never empty: without roots Pipy would accept every peer.
export function identity() {
  return present
}

// onIdentity calls the function with each new identity.
export function onIdentity(f) {
  listeners.push(f)
}

// read loads the files and returns whether there is an identity. If the files can't be
// used, the former identity stays in use.
export function read() {
  try {
    var trusted = certificates(os.readFile(`${DIR}/bundle.pem`).toString())
    if (trusted.length === 0) throw `${DIR}/bundle.pem holds no certificate`
    present = {
      certificate: {
        cert: new crypto.CertificateChain(os.readFile(`${DIR}/chain.pem`)),
        key: new crypto.PrivateKey(os.readFile(`${DIR}/key.pem`)),
      },
      trusted,
    }
  } catch (error) {
    console.error('cannot read the identity:', (error && error.message) || `${error}`)
    return present !== null
  }
  listeners.forEach(f => f(present))
  return true
}

// certificates returns the certificates of a PEM text.
function certificates(text) {
  var end = '-----END CERTIFICATE-----'
  return text.split(end).filter(part => part.indexOf('-----BEGIN CERTIFICATE-----') >= 0).map(
    part => new crypto.Certificate(part.substring(part.indexOf('-----BEGIN CERTIFICATE-----')) + end + '\n')
  )
}
