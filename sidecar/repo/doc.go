// Package repo is the delivery kit for proxies that read their configuration from files:
// it owns the listening socket, serves each proxy its own files over mutual TLS, and
// pushes changes.
//
// The driver translates a View into a set of files. The kit authenticates the agent in the
// pod and serves the set at /repo/<pod UID>/ with the protocol of package mirror, so that
// the agent gets each change at once. Proxies without an agent are not supported.
//
// Versions are digests of the content, so all replicas agree on them and an agent may
// switch replicas at any time.
//
// Drivers in other repositories use this package. Its exported names must not refer to
// packages below internal.
package repo
