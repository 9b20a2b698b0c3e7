//go:build race

package xds

// raceEnabled is set if the race detector slows everything down.
const raceEnabled = true
