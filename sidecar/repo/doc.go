// Package repo is the delivery kit for proxies that take their configuration as files:
// it serves each proxy its own files over mutual TLS, tells it of changes, and owns the
// socket for it.
//
// A driver makes the set of files of a View. The kit finds out who connects and serves
// the set at /repo/<pod UID>/ to the agent in the pod, by the protocol of package mirror:
// an agent is sent what has changed as soon as it has changed. A proxy without an agent
// is not served.
//
// Versions are digests of the content, so all replicas agree on them and an agent may go
// from one to another at any time.
package repo
