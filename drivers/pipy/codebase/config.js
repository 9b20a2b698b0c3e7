// The proxy's configuration documents and their updates.
//
// The documents of the codebase are loaded first. Then the proxy polls the agent for
// changes with Outrigger's mirror protocol: a GET names the version in use and waits for
// another. A change that can't be used is reported to the agent, and the former documents
// stay in use. Without an agent the documents of the codebase are never updated.
//
// The first thread polls and passes changes on to the others. A version is acknowledged
// when all threads use it, and refused if one of them can't.

import { thread, get, set, drop, publish, published, regularly } from './shared.js'

var SCHEMA = 3
var DIR = 'config/'
var DESTINATIONS = DIR + 'destinations/'
var BACKENDS = DIR + 'backends/'
var CERTIFICATES = DIR + 'certificates/'
var WAIT = 240
// How often, in seconds, a thread checks the other threads' progress with a change.
var SOON = 0.002
// The version of an empty set of files.
var NOTHING = '0'.repeat(32)

var agent = new http.Agent(os.env.OUTRIGGER_MIRROR || '127.0.0.1:15901', { connectTimeout: 5, idleTimeout: WAIT + 30 })

// documents are the parsed documents by file name.
var documents = {}
// destinations are keyed by "address port", backends by name.
var destinations = {}
var backends = {}
// These are asked for several times for each request, and a lookup by name costs more.
var ownSettings = null
var ownInbound = null
var ownEgress = null
var listeners = []

// version is the version of the documents, if they came from the agent; refused is the
// last version that could not be used.
var version = null
var refused = null

// changes counts the changes that the first thread has passed on, or that another thread
// has processed.
var changes = 0

export function settings() {
  return ownSettings
}

export function inbound() {
  return ownInbound
}

export function egress() {
  return ownEgress
}

// destinationAt returns the document of the destination at an address and port, or
// undefined.
export function destinationAt(address, port) {
  return destinations[`${address} ${port}`]
}

// gatewayPorts returns the documents of the destinations at whose port the proxy itself listens.
export function gatewayPorts() {
  return Object.keys(documents).filter(name => name.startsWith(DESTINATIONS) && documents[name].listens).map(name => documents[name])
}

// certificateText returns a gateway's certificate with its private key as PEM, or undefined.
export function certificateText(name) {
  return documents[`${CERTIFICATES}${name}.pem`]
}

// backend returns the document of the named backend, or undefined.
export function backend(name) {
  return backends[name]
}

// onChange calls the function after each change, with an object whose keys are the names
// of the files that were changed or removed.
export function onChange(f) {
  listeners.push(f)
}

// load reads the documents of the codebase. It returns whether there are any.
export function load() {
  var found = pipy.list(DIR).filter(name => name.endsWith('.json') || name.endsWith('.pem')).map(
    name => ({ name: DIR + name, text: pipy.load(DIR + name).toString() })
  )
  if (found.length === 0) return false
  try {
    replace(parse(found), [], true)
    return settings() !== null
  } catch (error) {
    console.error('cannot use the configuration of the codebase:', reason(error))
    return false
  }
}

// follow starts applying changes, and never stops.
export function follow() {
  if (thread === 0) poll()
  else regularly(applyShared)
}

// poll asks the agent for changes, again and again.
function poll() {
  var headers = { 'accept': 'application/vnd.outrigger.mirror+json', 'prefer': `wait=${WAIT}` }
  if (version || refused) {
    headers['if-none-match'] = [version || NOTHING, refused].filter(v => v !== null).map(v => `"${v}"`).join(', ')
  }
  agent.request('GET', '/mirror', headers).then(
    function (response) {
      switch (response.head.status) {
        case 200:
          return apply(response.body.toString())
        case 304:
          return 0
        default:
          return 1
      }
    }
  ).catch(() => 1).then(
    delay => new Timeout(delay).wait().then(poll)
  )
}

// apply applies a change from the agent on all threads. It returns after how many seconds
// to poll for the next one.
function apply(text) {
  var change = null
  var files = null
  try {
    change = JSON.parse(text)
    if (change.base && change.base !== version) {
      // It does not fit the documents. Polling without a version returns all of them.
      version = null
      refused = null
      return 0
    }
    files = prepare(change)
  } catch (error) {
    refuse(change, reason(error))
    return 0
  }
  changes++
  set('change', text)
  set('changes', changes)
  publish('prepared', changes)
  return allHave('prepared').then(
    function () {
      var why = published('refusal').find(why => why)
      set('decided', why ? -changes : changes)
      drop('change')
      if (why) return why
      replace(files, change.gone || [], !change.base)
      publish('taken', changes)
      return allHave('taken').then(() => '')
    }
  ).then(
    function (why) {
      if (why) {
        refuse(change, why)
      } else {
        version = change.version
        refused = null
      }
      return 0
    }
  )
}

function refuse(change, why) {
  console.error('cannot use the configuration:', why)
  if (!change || !change.version) return
  refused = change.version
  agent.request('POST', '/mirror', { 'content-type': 'application/vnd.outrigger.status+json' },
    JSON.stringify({ version: change.version, error: why })
  ).catch(() => undefined)
}

// allHave resolves when all threads have published the number of the current change.
function allHave(what) {
  if (published(what).every(n => n === changes)) return Promise.resolve(true)
  return new Timeout(SOON).wait().then(() => allHave(what))
}

// applyShared applies a change that the first thread has passed on, once all threads have
// prepared it: so all of them switch at nearly the same time.
function applyShared() {
  var last = get('changes') || 0
  if (last === changes) return
  changes = last
  var change = null
  var files = null
  var why = ''
  try {
    change = JSON.parse(get('change'))
    files = prepare(change)
  } catch (error) {
    why = reason(error)
  }
  publish('refusal', why)
  publish('prepared', changes)
  whenDecided().then(
    function (go) {
      if (go) replace(files, change.gone || [], !change.base)
      publish('taken', changes)
    }
  )
}

// whenDecided resolves to whether the current change is to be applied.
function whenDecided() {
  var decided = get('decided')
  if (decided === changes || decided === -changes) return Promise.resolve(decided > 0)
  return new Timeout(SOON).wait().then(whenDecided)
}

// prepare returns the documents of a change by file name, or throws why it can't be used.
function prepare(change) {
  var settings = DIR + 'settings.json'
  var files = parse(change.files || [])
  var there = name => name in files || change.base && name in documents && !(change.gone || []).includes(name)
  if (!there(settings)) throw `there is no ${settings}`
  return files
}

// parse returns the documents of files by name, or throws why one can't be used.
function parse(files) {
  return Object.fromEntries(files.map(
    function (file) {
      if (!file.name.startsWith(DIR) || file.name.startsWith(CERTIFICATES)) return [file.name, file.text]
      var document = null
      try {
        document = JSON.parse(file.text)
      } catch (error) {
        throw `${file.name} is not JSON: ${reason(error)}`
      }
      if (!document || document.schema !== SCHEMA) {
        throw `${file.name} has schema ${document && document.schema}; these scripts support only ${SCHEMA}`
      }
      return [file.name, document]
    }
  ))
}

// replace replaces the changed documents and removes those that are gone; with all set,
// it removes every document that is not among the changed ones. If it throws, nothing has
// changed.
function replace(changed, gone, all) {
  var settings = DIR + 'settings.json'
  if (all) gone = Object.keys(documents).filter(name => !(name in changed))
  if (gone.includes(settings) || !(settings in changed || settings in documents)) throw `there is no ${settings}`
  var names = Object.keys(changed)
  gone.forEach(remove)
  names.forEach(remove)
  names.forEach(name => add(name, changed[name]))
  ownSettings = documents[settings]
  ownInbound = documents[DIR + 'inbound.json'] || null
  ownEgress = documents[DIR + 'egress.json'] || null
  var touched = Object.fromEntries(gone.concat(names).map(name => [name, true]))
  listeners.forEach(
    function (f) {
      try {
        f(touched)
      } catch (error) {
        console.error('applying a change:', reason(error))
      }
    }
  )
}

function remove(name) {
  var document = documents[name]
  if (!document) return
  delete documents[name]
  if (name.startsWith(DESTINATIONS)) {
    document.addresses.forEach(
      function (address) {
        var key = `${address} ${document.port}`
        if (destinations[key] === document) delete destinations[key]
      }
    )
  } else if (name.startsWith(BACKENDS) && backends[document.name] === document) {
    delete backends[document.name]
  }
}

function add(name, document) {
  documents[name] = document
  if (name.startsWith(DESTINATIONS)) {
    document.addresses.forEach(address => destinations[`${address} ${document.port}`] = document)
  } else if (name.startsWith(BACKENDS)) {
    backends[document.name] = document
  }
}

function reason(error) {
  return (error && error.message) || `${error}`
}
