// Package probe answers for the pod: it sends the kubelet's probes and lifecycle hooks to the
// app as the kubelet would, and reports readiness, metrics and the end of a Job. What the pod's
// state is, it asks the functions that it is given. It imports the kit and package socket.
package probe
