// Metrics for Prometheus, under the names of all proxies and then under Envoy's, and the
// readiness of the proxy, on port 15010.

import { threads, TICK, add, newCount, share, valueOf, publish, published, regularly } from './shared.js'

var PORT = 15010
// How long to wait for the other threads' metrics, in seconds. After that the last ones
// that a thread has published are used.
var PATIENCE = 2

// The types of histograms: of milliseconds and, for the metrics of all proxies, of seconds.
var HISTOGRAM = 'histogram'
export var HISTOGRAM_SECONDS = 'histogram of seconds'

// The upper bounds of the histograms' buckets, those of milliseconds as Envoy has them.
var buckets = {
  'histogram': [0.5, 1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 300000, 600000, 1800000, 3600000],
  'histogram of seconds': [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
}

// The help texts of the metrics of all proxies.
var help = {}

// The thread's own metric families by name, each with its series by their labels as text.
var families = {}

// asked counts the requests for the metrics of all threads; answered is the last one that
// this thread has answered.
var asked = newCount('asked')
var answered = 0

share(asked, true)
regularly(answerOthers)

// Returns the series of a metric with the labels. The counts of a histogram are those of its
// buckets without the ones below.
export function series(name, type, labels) {
  var family = families[name] || (families[name] = { type, series: {} })
  var key = Object.entries(labels).map(label => `${label[0]}="${escape(label[1])}"`).join(',')
  return family.series[key] || (family.series[key] = { value: 0, sum: 0, counts: buckets[type] ? buckets[type].map(() => 0) : null })
}

// answerOthers publishes this thread's metrics if another thread collects them.
function answerOthers() {
  var now = valueOf(asked)
  if (now === answered) return false
  publish('numbers', JSON.stringify(families))
  publish('answered', now)
  answered = now
  return false
}

// collect resolves to the families of all threads, once these have published them.
function collect() {
  var number = add(asked, 1)
  var until = Date.now() + PATIENCE * 1000
  answerOthers()
  function look() {
    if (published('answered').every(n => n >= number) || Date.now() >= until) {
      return Promise.resolve(sum(published('numbers').filter(text => text).map(text => JSON.parse(text))))
    }
    return new Timeout(TICK / 2).wait().then(look)
  }
  return look()
}

// sum adds up the families of all threads, series by series.
function sum(all) {
  var total = {}
  all.forEach(
    families => Object.entries(families).forEach(
      function (entry) {
        var family = total[entry[0]] || (total[entry[0]] = { type: entry[1].type, series: {} })
        Object.entries(entry[1].series).forEach(one => family.series[one[0]] = plus(family.series[one[0]], one[1]))
      }
    )
  )
  return total
}

function plus(a, b) {
  return !a ? b : { value: a.value + b.value, sum: a.sum + b.sum, counts: a.counts && a.counts.map((n, i) => n + b.counts[i]) }
}

function escape(value) {
  return `${value}`.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n')
}

// Adds n to a counter, by default 1.
export function count(name, labels, n) {
  series(name, 'counter', labels).value += n === undefined ? 1 : n
}

// Adds n, which may be negative, to a gauge.
export function change(name, labels, n) {
  series(name, 'gauge', labels).value += n
}

// Adds a value to a histogram's series.
export function observe(s, type, value) {
  var limits = buckets[type]
  s.value++
  s.sum += value
  for (var i = 0; value > limits[i]; i++) void 0
  if (i < limits.length) s.counts[i]++
}

// The series of each cluster's requests and each listener's. Looking them up by their labels
// would cost more than the rest of a request.
var clusters = new Map, listeners = new Map

// Counts an answered request to a cluster, with its status and duration.
export function countRequest(cluster, status, milliseconds) {
  var known = clusters.get(cluster)
  if (!known) {
    var labels = { envoy_cluster_name: cluster }
    known = { statuses: {}, total: series('envoy_cluster_upstream_rq_total', 'counter', labels), time: series('envoy_cluster_upstream_rq_time', HISTOGRAM, labels) }
    clusters.set(cluster, known)
  }
  var answered = known.statuses[status] || (known.statuses[status] = {
    code: series('envoy_cluster_upstream_rq', 'counter', { envoy_response_code: status, envoy_cluster_name: cluster }),
    codes: series('envoy_cluster_upstream_rq_xx', 'counter', { envoy_response_code_class: Math.floor(status / 100), envoy_cluster_name: cluster }),
  })
  known.total.value++
  answered.code.value++
  answered.codes.value++
  observe(known.time, HISTOGRAM, milliseconds)
}

// Counts a request that a listener has received.
export function countDownstream(prefix, status) {
  var known = listeners.get(prefix)
  if (!known) {
    known = { answers: {}, total: series('envoy_http_downstream_rq_total', 'counter', { envoy_http_conn_manager_prefix: prefix }) }
    listeners.set(prefix, known)
  }
  var hundreds = Math.floor(status / 100)
  var answered = known.answers[hundreds] || (known.answers[hundreds] = series(
    'envoy_http_downstream_rq_xx', 'counter', { envoy_response_code_class: hundreds, envoy_http_conn_manager_prefix: prefix }
  ))
  known.total.value++
  answered.value++
}

// Returns the families in Prometheus' text format, those of all proxies first.
function text(families) {
  var lines = []
  var common = Object.keys(help)
  common.concat(Object.keys(families).filter(name => !help[name])).forEach(
    function (name) {
      var family = families[name]
      // Who reads this knows the metrics by their help, also if there was no traffic.
      if (help[name]) lines.push(`# HELP ${name} ${help[name]}`)
      if (!family) return
      lines.push(`# TYPE ${name} ${buckets[family.type] ? HISTOGRAM : family.type}`)
      Object.keys(family.series).forEach(
        function (labels) {
          var s = family.series[labels]
          if (!s.counts) {
            lines.push(`${name}{${labels}} ${s.value}`)
            return
          }
          var prefix = labels === '' ? '' : labels + ','
          var below = 0
          buckets[family.type].forEach((limit, i) => lines.push(`${name}_bucket{${prefix}le="${limit}"} ${below += s.counts[i]}`))
          lines.push(`${name}_bucket{${prefix}le="+Inf"} ${s.value}`)
          lines.push(`${name}_sum{${labels}} ${s.sum}`)
          lines.push(`${name}_count{${labels}} ${s.value}`)
        }
      )
    }
  )
  return lines.join('\n') + '\n'
}

function isLocal(address) {
  return address === '127.0.0.1' || address === '::ffff:127.0.0.1'
}

function metricsAnswer(families) {
  return new Message({ status: 200, headers: { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' } }, text(families))
}

// Sets the help texts of the metrics of all proxies, in their order.
export function describe(texts) {
  help = texts
}

var $client

// Serves the metrics, and the readiness that the function returns. When the agent posts to
// /leave, the other function is called.
export function listen(isReady, leave) {
  var answer = pipeline($=>$.onStart(client => void ($client = client.remoteAddress)).serveHTTP(
    function (request) {
      var path = request.head.path.split('?')[0]
      if (path === '/leave' && request.head.method === 'POST' && isLocal($client)) {
        leave()
        return new Message({ status: 200 }, 'OK\n')
      }
      if (path === '/ready') {
        return isReady() ? new Message({ status: 200 }, 'LIVE\n') : new Message({ status: 503 }, 'INITIALIZING\n')
      }
      if (path !== '/stats/prometheus') return new Message({ status: 404 }, 'not found\n')
      if (request.head.method !== 'GET') return new Message({ status: 405 })
      return threads === 1 ? metricsAnswer(families) : collect().then(metricsAnswer)
    }
  ))
  // Every client that reaches the pod can connect. Prometheus stays within these bounds.
  var options = { maxConnections: 128, idleTimeout: 20 }
  try {
    pipy.listen(`[::]:${PORT}`, options, answer)
  } catch (error) {
    pipy.listen(`0.0.0.0:${PORT}`, options, answer)
  }
}
