// The documents that the proxy goes by, and how it follows them.
//
// They begin as they lie in the codebase. Then the agent beside the proxy is asked for
// changes, by Outrigger's mirror protocol: a GET says which version is in use and waits
// for another. A change that can't be used is told to the agent, and what was there
// before stays. Where there is no agent, the codebase is all there is.
//
// The first thread asks, and hands changes to the others. What is told to the agent
// holds of all of them.

import { thread, get, set, drop, tell, told, regularly } from './shared.js'

var SCHEMA = 2
var DIR = 'config/'
var DESTINATIONS = DIR + 'destinations/'
var BACKENDS = DIR + 'backends/'
var WAIT = 240
// How often, in seconds, a thread looks for what others do about a change.
var SOON = 0.002
// The version of no files at all.
var NOTHING = '0'.repeat(32)

var agent = new http.Agent(os.env.OUTRIGGER_MIRROR || '127.0.0.1:15901', { connectTimeout: 5, idleTimeout: WAIT + 30 })

// documents are by the names of their files, as they were parsed.
var documents = {}
// destinations are by "address port", and backends by their own names.
var destinations = {}
var backends = {}
var listeners = []

// version is that of the documents, if the agent gave it, and refused is one that could
// not be used.
var version = null
var refused = null

// changes is how many the first thread has handed on, or another has taken up.
var changes = 0

export function settings() {
  return documents[DIR + 'settings.json'] || null
}

export function inbound() {
  return documents[DIR + 'inbound.json'] || null
}

export function egress() {
  return documents[DIR + 'egress.json'] || null
}

// destinationAt returns the document of what an application connects to, or undefined.
export function destinationAt(address, port) {
  return destinations[`${address} ${port}`]
}

// backend returns the document of the name, or undefined.
export function backend(name) {
  return backends[name]
}

// onChange has the function called after each change, with an object whose keys are the
// names of the files that changed or are gone.
export function onChange(f) {
  listeners.push(f)
}

// load reads the documents of the codebase. It returns whether there are any.
export function load() {
  var found = pipy.list(DIR).filter(name => name.endsWith('.json')).map(
    name => ({ name: DIR + name, text: pipy.load(DIR + name).toString() })
  )
  if (found.length === 0) return false
  try {
    take(parse(found), [], true)
    return settings() !== null
  } catch (error) {
    console.error('the configuration of the codebase cannot be used:', reason(error))
    return false
  }
}

// follow takes up changes, for ever.
export function follow() {
  if (thread === 0) ask()
  else regularly(takeOver)
}

// ask asks the agent for changes.
function ask() {
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
    delay => new Timeout(delay).wait().then(ask)
  )
}

// apply takes up a change of the agent's, on all threads. It returns how long to wait for
// the next one.
function apply(text) {
  var change = null
  var files = null
  try {
    change = JSON.parse(text)
    if (change.base && change.base !== version) {
      // It is made to something else. Without a version the next one is whole.
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
  tell('prepared', changes)
  return allHave('prepared').then(
    function () {
      var why = told('refusal').find(why => why)
      set('decided', why ? -changes : changes)
      drop('change')
      if (why) return why
      take(files, change.gone || [], !change.base)
      tell('taken', changes)
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
  console.error('configuration cannot be used:', why)
  if (!change || !change.version) return
  refused = change.version
  agent.request('POST', '/mirror', { 'content-type': 'application/vnd.outrigger.status+json' },
    JSON.stringify({ version: change.version, error: why })
  ).catch(() => undefined)
}

// allHave settles when all threads have told of the present change.
function allHave(what) {
  if (told(what).every(n => n === changes)) return Promise.resolve(true)
  return new Timeout(SOON).wait().then(() => allHave(what))
}

// takeOver takes up what the first thread has handed on, when all threads can: so they do
// it within a moment.
function takeOver() {
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
  tell('refusal', why)
  tell('prepared', changes)
  whenDecided().then(
    function (go) {
      if (go) take(files, change.gone || [], !change.base)
      tell('taken', changes)
    }
  )
}

// whenDecided settles with whether the present change is to be taken up.
function whenDecided() {
  var decided = get('decided')
  if (decided === changes || decided === -changes) return Promise.resolve(decided > 0)
  return new Timeout(SOON).wait().then(whenDecided)
}

// prepare returns the documents of a change by name. It throws what is wrong with it, and
// then nothing has changed.
function prepare(change) {
  var settings = DIR + 'settings.json'
  var files = parse(change.files || [])
  var there = name => name in files || change.base && name in documents && !(change.gone || []).includes(name)
  if (!there(settings)) throw `there is no ${settings}`
  return files
}

// parse returns the documents of files by name. It throws what is wrong with one.
function parse(files) {
  return Object.fromEntries(files.map(
    function (file) {
      if (!file.name.startsWith(DIR)) return [file.name, file.text]
      var document = null
      try {
        document = JSON.parse(file.text)
      } catch (error) {
        throw `${file.name} is not JSON: ${reason(error)}`
      }
      if (!document || document.schema !== SCHEMA) {
        throw `${file.name} has schema ${document && document.schema}, and these scripts understand ${SCHEMA} only`
      }
      return [file.name, document]
    }
  ))
}

// take puts documents in the place of those of the same names, or of all. It throws
// before anything has changed.
function take(changed, gone, whole) {
  var settings = DIR + 'settings.json'
  if (whole) gone = Object.keys(documents).filter(name => !(name in changed))
  if (gone.includes(settings) || !(settings in changed || settings in documents)) throw `there is no ${settings}`
  var names = Object.keys(changed)
  gone.forEach(remove)
  names.forEach(remove)
  names.forEach(name => add(name, changed[name]))
  var all = Object.fromEntries(gone.concat(names).map(name => [name, true]))
  listeners.forEach(
    function (f) {
      try {
        f(all)
      } catch (error) {
        console.error('taking up a change:', reason(error))
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
