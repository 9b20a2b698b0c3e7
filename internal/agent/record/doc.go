// Package record reads the lines that the proxy writes about its requests: it counts records
// and serves the counts to Prometheus, and sends spans to a collector. It imports the kit only,
// and neither starts the proxy nor knows which one it is.
package record
