// The pod's identity: its key and certificate, and the roots that verify its peers.
//
// The agent keeps them as files and replaces all of them at once. Nothing of them is
// ever written anywhere.

var DIR = os.env.OUTRIGGER_IDENTITY_DIR || '/run/outrigger-identity'

var present = null
var listeners = []

// identity returns {certificate: {cert, key}, trusted}, or null as long as there is
// none. Trusted is never empty: without roots Pipy would verify nobody.
export function identity() {
  return present
}

// onIdentity has the function called with each new identity.
export function onIdentity(f) {
  listeners.push(f)
}

// read takes up what the files hold. It returns whether there is an identity; if the
// files can't be used, the one before stays.
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
    console.error('the identity cannot be read:', (error && error.message) || `${error}`)
    return present !== null
  }
  listeners.forEach(f => f(present))
  return true
}

// certificates returns those of a PEM text.
function certificates(text) {
  var end = '-----END CERTIFICATE-----'
  return text.split(end).filter(part => part.indexOf('-----BEGIN CERTIFICATE-----') >= 0).map(
    part => new crypto.Certificate(part.substring(part.indexOf('-----BEGIN CERTIFICATE-----')) + end + '\n')
  )
}
