//go:build race

package inject_test

// raceDetector makes everything take many times as long, and not by one factor.
const raceDetector = true
