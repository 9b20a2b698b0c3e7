// Package apis contains no code. Its folders are API groups, and status, which they
// share. Their subfolders are the versions of a group, with the Go types from which the
// CRDs in charts/outrigger/crds are generated. The tests here cover all groups of
// traffic policies; those of the mesh's own configuration are next to its types.
package apis
