// Package apis has no code of its own. Each folder in it is an API group, or status,
// which the groups share, and each folder in that is a version of the group, with the
// Go types that the CRDs in charts/outrigger/crds are generated from. The tests here
// hold for all groups of traffic policies; those of the mesh's own configuration are
// beside its types.
package apis
