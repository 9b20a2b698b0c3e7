//go:build !race

package inject_test

const raceDetector = false
