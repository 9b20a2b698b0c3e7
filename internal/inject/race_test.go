//go:build race

package inject_test

// raceDetector slows everything down by varying factors.
const raceDetector = true
