// Package process runs the proxy: it starts, watches, reloads and stops its process and others
// beside it, reaps what they leave behind, and reports to the controller when the proxy does not
// stay up. A process runs on a host, which may be another container. It imports the kit and
// package socket, and knows neither the proxy's files nor how one version replaces another.
package process
