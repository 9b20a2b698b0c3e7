// External authorization: the user's own service is asked about each request that the
// rules allow, with Envoy's gRPC API envoy.service.auth.v3.
//
// The numbers are those of the fields in the API's messages.

import { settings, onChange } from './config.js'
import { forget } from './backend.js'
import { call, messagesOf, newService, textOf } from './grpc.js'
import { changeHeaders } from './filter.js'
import { isChangeable } from './request.js'

var CHECK = '/envoy.service.auth.v3.Authorization/Check'

var service = null

onChange(
  function () {
    var authorization = settings()?.authorization
    var address = authorization ? authorization.address : ''
    if (address === (service ? service.address : '')) return
    if (service) forget(service.backend)
    service = address ? newService('authorization', address) : null
  }
)

// ask asks the service about a request. It resolves to the verdict, or to null if there is
// none that can be used. A verdict has the field allowed. If that is true it also has the
// changes of the headers of request and response, and otherwise the status, headers and
// body of the answer.
export function ask(connection, head) {
  if (!service) return Promise.resolve(null)
  return call(service, CHECK, checkRequest(connection, head), settings().authorization.timeout).then(
    answer => answer && verdictOf(answer)
  ).catch(() => null)
}

function checkRequest(connection, head) {
  var attributes = new protobuf.Message
  attributes.setMessage(1, peer(connection.source, portOf(connection.remote), connection.peer))
  attributes.setMessage(2, peer(connection.address, connection.number, ''))
  var request = new protobuf.Message
  request.setMessage(1, timestamp(Date.now()))
  request.setMessage(2, httpRequest(head))
  attributes.setMessage(4, request)
  if (connection.serverName) {
    var session = new protobuf.Message
    session.setString(1, connection.serverName)
    attributes.setMessage(12, session)
  }
  var message = new protobuf.Message
  message.setMessage(1, attributes)
  return message
}

function peer(address, port, principal) {
  var socket = new protobuf.Message
  socket.setString(2, address)
  socket.setUint32(3, port)
  var wrapped = new protobuf.Message
  wrapped.setMessage(1, socket)
  var message = new protobuf.Message
  message.setMessage(1, wrapped)
  if (principal) message.setString(4, principal)
  return message
}

function portOf(remote) {
  return Number.parseInt(remote.substring(remote.lastIndexOf(':') + 1)) || 0
}

function timestamp(milliseconds) {
  var message = new protobuf.Message
  message.setInt64(1, Math.floor(milliseconds / 1000))
  message.setInt32(2, milliseconds % 1000 * 1000000)
  return message
}

function httpRequest(head) {
  var headers = head.headers
  var scheme = head.scheme || 'http'
  var host = headers.host || ''
  var message = new protobuf.Message
  message.setString(1, headers['x-request-id'])
  message.setString(2, head.method)
  message.setMessageArray(3, [
    entry(':authority', host), entry(':method', head.method), entry(':path', head.path), entry(':scheme', scheme),
  ].concat(Object.keys(headers).filter(name => name !== 'host').map(name => entry(name, joined(headers[name])))))
  message.setString(4, head.path)
  message.setString(5, host)
  message.setString(6, scheme)
  message.setInt64(9, headers['content-length'] === undefined ? -1 : Number.parseInt(headers['content-length']))
  message.setString(10, head.protocol || 'HTTP/2')
  return message
}

function entry(key, value) {
  var message = new protobuf.Message
  message.setString(1, key)
  message.setString(2, value)
  return message
}

function joined(value) {
  return value instanceof Array ? value.join(',') : `${value}`
}

// verdictOf returns the verdict of an answer, or null if the answer asks for changes that
// can't be made: then the service has not allowed the request as it is.
function verdictOf(answer) {
  // The service reports an error of its own.
  if (answer.getBytesArray(5).length > 0) return null
  var status = messagesOf(answer, 1)[0]
  var code = status ? status.getInt32(1) : 0
  return code === 0 ? allowed(messagesOf(answer, 3)[0]) : denied(messagesOf(answer, 2)[0])
}

function allowed(ok) {
  var verdict = { allowed: true, request: { set: [], add: [], remove: [] }, response: { set: [], add: [], remove: [] } }
  if (!ok) return verdict
  // By the API's definition the host stays.
  verdict.request.remove = ok.getStringArray(5).map(name => name.toLowerCase()).filter(name => name !== 'host' && !name.startsWith(':'))
  var usable = verdict.request.remove.every(name => isChangeable(name, '')) &&
    // Changes of the query.
    ok.getBytesArray(7).length + ok.getBytesArray(8).length === 0 &&
    collect(verdict.request, messagesOf(ok, 2), false) && collect(verdict.response, messagesOf(ok, 6), true)
  return usable ? verdict : null
}

function denied(answer) {
  var verdict = { allowed: false, status: 403, headers: {}, body: '' }
  if (!answer) return verdict
  var status = messagesOf(answer, 1)[0]
  var code = status ? status.getInt32(1) : 0
  if (code >= 200 && code <= 599) verdict.status = code
  var changes = { set: [], add: [], remove: [] }
  if (collect(changes, messagesOf(answer, 2), false)) changeHeaders(verdict.headers, changes)
  verdict.body = textOf(answer, 3)
  return verdict
}

// collect adds the options, which are messages HeaderValueOption, to the changes. It returns
// whether all can be made. Adds says whether options that do not say it add a line.
function collect(changes, options, adds) {
  return options.every(
    function (option) {
      var header = messagesOf(option, 1)[0]
      if (!header) return false
      var name = textOf(header, 1).toLowerCase()
      var value = textOf(header, 2) || textOf(header, 3)
      var append = messagesOf(option, 2)[0]
      var list = (append ? append.getBool(1) : adds && option.getInt32(3) === 0) ? changes.add : changes.set
      list.push({ name, value })
      return isChangeable(name, value)
    }
  )
}
