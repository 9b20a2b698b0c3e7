//go:build race

package repo

// raceEnabled says that the race detector slows everything down.
const raceEnabled = true
