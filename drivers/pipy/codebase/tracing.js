// Spans of requests, sent to a collector as Zipkin's JSON (version 2) or with OTLP.
//
// A proxy adds a span to the request's trace, or starts a trace. With Zipkin's protocol the
// headers x-b3-* or traceparent identify the trace, and a server shares the span of its
// client, as is usual with Zipkin. With OTLP only traceparent does, and each span has its
// own ID.

import { settings, onChange } from './config.js'
import { forget } from './backend.js'
import { newCollector, send } from './otlp.js'

// How many spans are queued at most, and how many are sent in one request.
var MOST = 1000, BATCH = 100

var pending = []
var flushing = false
// The collector is an HTTP agent for Zipkin's protocol, and a service for OTLP.
var collector = null
var collectorAddress = ''
var otlp = false

onChange(
  function () {
    var tracing = settings()?.tracing
    var address = tracing ? tracing.address : ''
    var isOTLP = Boolean(tracing && tracing.otlp)
    if (address === collectorAddress && isOTLP === otlp) return
    if (collector && otlp) forget(collector.backend)
    collectorAddress = address
    otlp = isOTLP
    collector = !address ? null : otlp ? newCollector(address) : new http.Agent(address, { connectTimeout: 5 })
  }
)

// Starts a span of the request, of kind CLIENT or SERVER, and writes its context into the
// headers. It returns null if tracing is off.
export function startSpan(kind, head) {
  var tracing = settings()?.tracing
  if (!tracing) return null
  var headers = head.headers
  if (!headers['x-request-id']) headers['x-request-id'] = algo.uuid()
  var parent = tracing.otlp ? parentOf(headers) : contextOf(headers)
  var span = { kind, traceId: '', id: '', parentId: undefined, shared: false, sampled: false, start: Date.now() * 1000, head }
  if (parent) {
    span.traceId = parent.traceId
    span.sampled = parent.sampled === undefined ? Math.random() < tracing.sampled : parent.sampled
    if (kind === 'SERVER' && !tracing.otlp) {
      span.id = parent.id
      span.parentId = parent.parentId
      span.shared = true
    } else {
      span.id = randomHex(16)
      span.parentId = parent.id
    }
  } else {
    span.traceId = randomHex(32)
    span.id = span.traceId.substring(16)
    span.sampled = Math.random() < tracing.sampled
  }
  if (tracing.otlp) {
    headers.traceparent = traceparent(span)
    return span
  }
  headers['x-b3-traceid'] = span.traceId
  headers['x-b3-spanid'] = span.id
  if (span.parentId) headers['x-b3-parentspanid'] = span.parentId
  else delete headers['x-b3-parentspanid']
  headers['x-b3-sampled'] = span.sampled ? '1' : '0'
  delete headers.b3
  delete headers['x-b3-flags']
  if (headers.traceparent) headers.traceparent = traceparent(span)
  return span
}

function traceparent(span) {
  return `00-${span.traceId.padStart(32, '0')}-${span.id}-${span.sampled ? '01' : '00'}`
}

// Ends a span with the answer's status, and queues it.
export function finishSpan(span, status, tags) {
  if (!span || !span.sampled || !collector) return
  var s = settings()
  var head = span.head
  if (pending.length >= MOST) pending.shift()
  pending.push({
    traceId: span.traceId,
    id: span.id,
    parentId: span.parentId,
    kind: span.kind,
    shared: span.shared ? true : undefined,
    name: head.headers.host || head.method,
    timestamp: span.start,
    duration: Math.max(1, Date.now() * 1000 - span.start),
    localEndpoint: { serviceName: `${s.serviceAccount}.${s.namespace}`, ipv4: (s.addresses || []).find(a => a.indexOf(':') < 0) },
    tags: {
      component: 'proxy',
      node_id: s.uid,
      'guid:x-request-id': head.headers['x-request-id'],
      'http.method': head.method,
      'http.protocol': head.protocol || 'HTTP/1.1',
      'http.url': `${head.scheme || 'http'}://${head.headers.host || ''}${head.path}`,
      'http.status_code': `${status}`,
      'k8s.namespace.name': s.namespace,
      'k8s.pod.name': s.name,
      service_account: s.serviceAccount,
      user_agent: head.headers['user-agent'],
      error: status >= 500 || !status ? 'true' : undefined,
      ...tags,
    },
  })
  if (!flushing) {
    flushing = true
    new Timeout(1).wait().then(flush)
  }
}

function flush() {
  flushing = false
  if (!collector) {
    pending = []
    return
  }
  var spans = pending.splice(0, BATCH)
  if (spans.length === 0) return
  if (otlp) send(collector, spans)
  else collector.request('POST', settings().tracing?.path || '/api/v2/spans', { 'content-type': 'application/json' }, JSON.stringify(spans)).catch(() => undefined)
  if (pending.length > 0) {
    flushing = true
    new Timeout(0.05).wait().then(flush)
  }
}

// Returns the trace context of the headers, or undefined.
function contextOf(headers) {
  var sampled = headers['x-b3-flags'] === '1' ? '1' : headers['x-b3-sampled']
  if (isHex(headers['x-b3-traceid']) && isHex(headers['x-b3-spanid'])) {
    return contextFrom(headers['x-b3-traceid'], headers['x-b3-spanid'], headers['x-b3-parentspanid'], sampled)
  }
  var b3 = `${headers.b3 || ''}`.split('-')
  if (b3.length >= 2 && isHex(b3[0]) && isHex(b3[1])) return contextFrom(b3[0], b3[1], b3[3], b3[2])
  // A sampling decision without a trace is ignored.
  return parentOf(headers)
}

// Returns the trace context of the header traceparent, or undefined.
function parentOf(headers) {
  var w3c = `${headers.traceparent || ''}`.split('-')
  if (w3c.length >= 4 && isHex(w3c[1]) && isHex(w3c[2]) && w3c[1].length === 32 && isHex(w3c[3])) {
    return contextFrom(w3c[1], w3c[2], undefined, Number.parseInt(w3c[3], 16) & 1 ? '1' : '0')
  }
  return undefined
}

function contextFrom(traceId, id, parentId, sampled) {
  var decided = { '1': true, 'true': true, 'd': true, '0': false, 'false': false }[`${sampled}`]
  return { traceId, id, parentId: isHex(parentId) ? parentId : undefined, sampled: decided }
}

var hexadecimal = '0123456789abcdef'

function isHex(text) {
  if (typeof text !== 'string' || text.length !== 16 && text.length !== 32 && text.length !== 2) return false
  for (var i = 0; i < text.length; i++) {
    if (hexadecimal.indexOf(text.charAt(i)) < 0) return false
  }
  return true
}

function randomHex(length) {
  return `${algo.uuid()}${algo.uuid()}`.replaceAll('-', '').substring(0, length)
}
