// Package behaviour runs the table of package sidecar/drivertest/behaviour over every
// pair of our own drivers, and writes docs/behaviour.md from what that finds.
package behaviour
