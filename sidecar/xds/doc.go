// Package xds is the delivery kit for proxies that take their configuration by Envoy's
// discovery protocol, xDS v3. It serves the aggregated discovery service over mutual
// TLS, in the delta and the state-of-the-world (SotW) variant, and owns the socket for
// it.
//
// A driver declares its resource types and makes a Config of a View. The kit
// authenticates the proxies, sends each what it lacks, in an order that never breaks
// traffic, and does not resend what a proxy has rejected. It does not interpret
// configuration: a resource is a name and bytes.
//
// A stream stores the tables that its proxy should have, which are shared among
// streams, and the proxy's exceptions from them. The cost of a change is therefore
// proportional to the change.
package xds
