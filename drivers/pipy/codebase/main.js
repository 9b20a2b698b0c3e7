// The program of a pod's sidecar.

import { load, follow, inbound, onChange } from './config.js'
import { identity, read } from './identity.js'
import { listen as listenInbound } from './inbound.js'
import { listen as listenMetrics } from './metrics.js'
import { listen as listenOutbound } from './outbound.js'

load()
read()
onChange(
  function (names) {
    if (names.identity) read()
  }
)
follow()
listenOutbound()
listenInbound()
listenMetrics(() => inbound() !== null && identity() !== null)
