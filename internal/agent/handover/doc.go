// Package handover lets another version of the proxy, in a container that joins the running pod,
// take over from the current one: it starts the process there, directs new connections to it once
// it is ready, and lets the former process finish its own. Run is the other container's part. It
// imports the kit, package socket and package process.
package handover
