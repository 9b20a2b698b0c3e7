// The program of a pod's sidecar.

import { load, follow, inbound, onChange } from './config.js'
import { identity, read } from './identity.js'
import { listen as listenInbound } from './inbound.js'
import { listen as listenMetrics } from './metrics.js'
import { listen as listenOutbound } from './outbound.js'
import { tell, told } from './shared.js'

function noteReady() {
  tell('ready', inbound() !== null && identity() !== null)
}

load()
read()
noteReady()
onChange(
  function (names) {
    if (names.identity) read()
    noteReady()
  }
)
follow()
listenOutbound()
listenInbound()
listenMetrics(() => told('ready').every(ready => ready))
