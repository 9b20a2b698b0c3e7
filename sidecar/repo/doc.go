// Package repo is the delivery kit for proxies that take their configuration as files:
// it serves each proxy its own files over mutual TLS, tells it of changes, and owns the
// socket for it.
//
// A driver makes the set of files of a View. The kit finds out who connects and serves
// the set at /repo/<pod UID>/, by two protocols. The agent in a pod speaks that of
// package mirror: it is sent what changed as soon as it has changed. A proxy program
// that was started by hand, without an agent, speaks that of Pipy's own repositories: a
// manifest, one file after the other, and a WebSocket that says when to load all again.
//
// Versions and entity tags are digests of the content, so all replicas agree on them
// and a proxy may go from one to another at any time.
package repo
