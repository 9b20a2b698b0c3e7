// Numbers for Prometheus, under the names that Envoy gives them, and whether the proxy
// is ready, on port 15010.

import { threads, TICK, add, newCount, share, valueOf, tell, told, regularly } from './shared.js'

var PORT = 15010
// How long the other threads' numbers are waited for, in seconds. Those of before are
// shown if one has none then.
var PATIENCE = 2

// What times are counted in, in milliseconds, as Envoy does.
var buckets = [0.5, 1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 300000, 600000, 1800000, 3600000]

// The thread's own families by name, each with its series by their labels as text.
var families = {}

// How often somebody has asked for the numbers of all threads, and what of that the
// thread has answered.
var asked = newCount('asked')
var answered = 0

share(asked, true)
regularly(answerOthers)

function series(name, type, labels) {
  var family = families[name] || (families[name] = { type, series: {} })
  var key = Object.entries(labels).map(label => `${label[0]}="${escape(label[1])}"`).join(',')
  return family.series[key] || (family.series[key] = { value: 0, sum: 0, counts: type === 'histogram' ? buckets.map(() => 0) : null })
}

// answerOthers shows the numbers to the thread that was asked for those of all.
function answerOthers() {
  var now = valueOf(asked)
  if (now === answered) return false
  tell('numbers', JSON.stringify(families))
  tell('answered', now)
  answered = now
  return false
}

// everybodys returns the families of all threads, once these have shown them.
function everybodys() {
  var number = add(asked, 1)
  var until = Date.now() + PATIENCE * 1000
  answerOthers()
  function look() {
    if (told('answered').every(n => n >= number) || Date.now() >= until) {
      return Promise.resolve(sum(told('numbers').filter(text => text).map(text => JSON.parse(text))))
    }
    return new Timeout(TICK / 2).wait().then(look)
  }
  return look()
}

// sum returns families of the same series with what these come to.
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

// Adds to a counter, by 1 unless n says otherwise.
export function count(name, labels, n) {
  series(name, 'counter', labels).value += n === undefined ? 1 : n
}

// Adds to a number that also falls.
export function change(name, labels, n) {
  series(name, 'gauge', labels).value += n
}

// Adds a time in milliseconds to a histogram.
export function observe(name, labels, milliseconds) {
  var s = series(name, 'histogram', labels)
  s.value++
  s.sum += milliseconds
  buckets.forEach(
    function (limit, i) {
      if (milliseconds <= limit) s.counts[i]++
    }
  )
}

// Counts a request that was answered: to whom it was sent and what came back.
export function countRequest(cluster, status, milliseconds) {
  var labels = { envoy_cluster_name: cluster }
  count('envoy_cluster_upstream_rq_total', labels)
  count('envoy_cluster_upstream_rq', { envoy_response_code: status, envoy_cluster_name: cluster })
  count('envoy_cluster_upstream_rq_xx', { envoy_response_code_class: Math.floor(status / 100), envoy_cluster_name: cluster })
  observe('envoy_cluster_upstream_rq_time', labels, milliseconds)
}

// Counts a request that was taken, by the listener's own name.
export function countDownstream(prefix, status) {
  count('envoy_http_downstream_rq_total', { envoy_http_conn_manager_prefix: prefix })
  count('envoy_http_downstream_rq_xx', { envoy_response_code_class: Math.floor(status / 100), envoy_http_conn_manager_prefix: prefix })
}

// Returns the numbers in the text format.
function text(families) {
  var lines = []
  Object.keys(families).forEach(
    function (name) {
      var family = families[name]
      lines.push(`# TYPE ${name} ${family.type}`)
      Object.keys(family.series).forEach(
        function (labels) {
          var s = family.series[labels]
          if (!s.counts) {
            lines.push(`${name}{${labels}} ${s.value}`)
            return
          }
          var prefix = labels === '' ? '' : labels + ','
          buckets.forEach((limit, i) => lines.push(`${name}_bucket{${prefix}le="${limit}"} ${s.counts[i]}`))
          lines.push(`${name}_bucket{${prefix}le="+Inf"} ${s.value}`)
          lines.push(`${name}_sum{${labels}} ${s.sum}`)
          lines.push(`${name}_count{${labels}} ${s.value}`)
        }
      )
    }
  )
  return lines.join('\n') + '\n'
}

function numbers(families) {
  return new Message({ status: 200, headers: { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' } }, text(families))
}

// Serves the numbers, and whether the function says that the proxy is ready.
export function listen(isReady) {
  var answer = pipeline($=>$.serveHTTP(
    function (request) {
      var path = request.head.path.split('?')[0]
      if (path === '/ready') {
        return isReady() ? new Message({ status: 200 }, 'LIVE\n') : new Message({ status: 503 }, 'INITIALIZING\n')
      }
      if (path !== '/stats/prometheus') return new Message({ status: 404 }, 'not found\n')
      if (request.head.method !== 'GET') return new Message({ status: 405 })
      return threads === 1 ? numbers(families) : everybodys().then(numbers)
    }
  ))
  // Whoever reaches the pod can ask, no slower than Prometheus does.
  var options = { maxConnections: 128, idleTimeout: 20 }
  try {
    pipy.listen(`[::]:${PORT}`, options, answer)
  } catch (error) {
    pipy.listen(`0.0.0.0:${PORT}`, options, answer)
  }
}
