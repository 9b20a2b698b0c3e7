// Package xds is the delivery kit for proxies that take their configuration by
// Envoy's discovery protocol, xDS v3: it serves the aggregated discovery service,
// delta and state of the world, over mutual TLS, and owns the socket for it.
//
// A driver says which types of resources there are and makes a Config of a View. The
// kit finds out who connects, sends what the proxy does not have yet in an order in
// which nothing breaks, and keeps what a proxy refuses from being sent again. It
// knows no proxy's configuration: a resource is a name and bytes.
//
// A stream keeps the tables that its proxy was brought to, which it shares with all
// other streams, and the exceptions from them. So a change costs what it changes.
package xds
