// Package behaviour asks a running mesh what it does, by requests: real controller,
// real agents and real proxies on a lab of network namespaces, and applications that
// live in the test. Each row of its table is a sentence about the mesh that is true
// of every pair of kinds of proxy; docs/behaviour.md is written from the run.
package behaviour
