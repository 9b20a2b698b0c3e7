//go:build race

package xds

// raceEnabled says that the race detector slows everything down.
const raceEnabled = true
