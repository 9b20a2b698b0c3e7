// Package apps runs real servers and their usual clients through the sidecars, and compares
// what the clients get with the same calls without a mesh. The programs are Debian's, which
// install.sh unpacks into a cache. 'make apps' runs all of them and writes
// docs/applications.md; 'go test' alone runs a few. It contains only tests.
package apps
