//go:build !race

// Package race reports whether a test was built with the race detector, so that tests
// that measure time or memory can omit their limits then. Programs never import it.
package race

// Enabled reports whether this program was built with the race detector.
const Enabled = false
