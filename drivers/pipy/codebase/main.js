// The entry point of a pod's sidecar program.

import { load, follow, inbound, settings, onChange } from './config.js'
import { identity, read } from './identity.js'
import { listen as listenInbound } from './inbound.js'
import { listen as listenMetrics } from './metrics.js'
import { listen as listenOutbound } from './outbound.js'
import { askToLeave } from './leave.js'
import { publish, published } from './shared.js'

function publishReady() {
  publish('ready', inbound() !== null && identity() !== null)
}

// listen accepts the connections that the documents ask for. A gateway has no application.
function listen() {
  listenOutbound()
  if (!(settings() && settings().gateway)) listenInbound()
}

load()
read()
publishReady()
onChange(
  function (names) {
    if (names.identity) read()
    publishReady()
    listen()
  }
)
follow()
listen()
listenMetrics(() => published('ready').every(ready => ready), askToLeave)
