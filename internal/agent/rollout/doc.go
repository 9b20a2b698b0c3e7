// Package rollout keeps the proxy's files those of the driver's repository: it requests versions,
// checks, installs and serves them, and returns to the last good one if the proxy cannot use them.
// The function step decides, without a clock and without I/O. It imports the kit and the packages
// identity, process and socket.
package rollout
