// Package ends compares what the two ends of an HTTP connection see through sidecars with what
// they see without a mesh, for a corpus of odd but legal messages. It has tests only, and
// docs/what-a-sidecar-changes.md has its result.
package ends
