// Spans in the format of OTLP, sent by gRPC.
//
// The numbers are those of the fields in OpenTelemetry's messages.

import { call, newService } from './grpc.js'

var EXPORT = '/opentelemetry.proto.collector.trace.v1.TraceService/Export'
// The time limit in seconds.
var LIMIT = 5

var kinds = { SERVER: 2, CLIENT: 3 }
var ERROR = 2

// newCollector returns the collector at an address of the form host:port.
export function newCollector(address) {
  return newService('tracing', address)
}

// send sends spans, which have Zipkin's fields, to the collector.
export function send(collector, spans) {
  var resource = new protobuf.Message
  resource.setMessageArray(1, [attribute('service.name', spans[0].localEndpoint.serviceName)])
  var scope = new protobuf.Message
  scope.setMessageArray(2, spans.map(spanOf))
  var group = new protobuf.Message
  group.setMessage(1, resource)
  group.setMessageArray(2, [scope])
  var message = new protobuf.Message
  message.setMessageArray(1, [group])
  call(collector, EXPORT, message, LIMIT)
}

function spanOf(span) {
  var message = new protobuf.Message
  message.setBytes(1, new Data(span.traceId, 'hex'))
  message.setBytes(2, new Data(span.id, 'hex'))
  if (span.parentId) message.setBytes(4, new Data(span.parentId, 'hex'))
  message.setString(5, span.name)
  message.setInt32(6, kinds[span.kind])
  message.setFixed64(7, span.timestamp * 1000)
  message.setFixed64(8, (span.timestamp + span.duration) * 1000)
  var tags = Object.keys(span.tags).filter(name => span.tags[name] !== undefined)
  message.setMessageArray(9, tags.map(name => attribute(name, `${span.tags[name]}`)))
  if (span.tags.error) {
    var status = new protobuf.Message
    status.setInt32(3, ERROR)
    message.setMessage(15, status)
  }
  return message
}

function attribute(key, text) {
  var value = new protobuf.Message
  value.setString(1, text)
  var message = new protobuf.Message
  message.setString(1, key)
  message.setMessage(2, value)
  return message
}
