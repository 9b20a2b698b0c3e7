// Package kit is what the rooms of the agent share: pauses, the timings and the metrics of all
// of them, and the few things that each would otherwise write again. It knows neither the mesh
// nor a proxy, and imports no other package of the agent.
package kit
