// Package behaviour runs the table of package sidecar/drivertest/behaviour with every
// pair of our own drivers, and writes the results to docs/behaviour.md.
package behaviour
