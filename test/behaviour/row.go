package behaviour

import (
	"slices"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
)

// Row is a statement about the mesh that holds for a pair of classes, unless a driver
// does not claim it.
type Row struct {
	// Name is the title of the row in the table.
	Name string
	// Says is the statement.
	Says string
	// Needs are the features that the drivers of the two sides must declare.
	Needs Needs
	// proves tests the statement. It leaves the mesh as it found it.
	proves func(t *testing.T, w *testMesh)
}

// Needs are the features that the drivers of clients and servers must declare for a row
// to be tested.
type Needs struct {
	Client, Server []mesh.Feature
}

// ofEvery is for rows that hold for every driver.
var ofEvery Needs

func ofClient(features ...mesh.Feature) Needs { return Needs{Client: features} }

func ofServer(features ...mesh.Feature) Needs { return Needs{Server: features} }

func ofBoth(features ...mesh.Feature) Needs { return Needs{Client: features, Server: features} }

// meets reports whether a row with the Needs is tested: the drivers of the pair declare all needed
// features, and the versions of the proxies have them.
func (w *testMesh) meets(n Needs) bool {
	return w.has(w.Client, n.Client...) && w.has(w.Server, n.Server...)
}

// has reports whether the driver of a class declares all of the features, and the proxies here
// have them.
func (w *testMesh) has(class string, features ...mesh.Feature) bool {
	has := sidecar.Features(class)
	if known := sidecar.Releases(class); known != nil {
		lacked := known.LackedBy(w.found[class])
		has = slices.DeleteFunc(slices.Clone(has), func(f mesh.Feature) bool { return slices.Contains(lacked, f) })
	}
	return !slices.ContainsFunc(features, func(f mesh.Feature) bool { return !slices.Contains(has, f) })
}

// Chapter is a group of related rows.
type Chapter struct {
	Name string
	Rows []Row
	// beside is for chapters that are tested in a second mesh of the pair, at the same time as
	// the others. Their rows wait for counts, logs or certificates most of the time.
	beside bool
}

// Chapters returns the table.
func Chapters() []Chapter {
	return []Chapter{
		{Name: "Who may call", Rows: access},
		{Name: "On the wire", Rows: wire},
		{Name: "Unauthenticated clients", Rows: unauthenticated},
		{Name: "Protocols", Rows: protocols},
		{Name: "Traffic", Rows: traffic},
		{Name: "Gateway API", Rows: gateway},
		{Name: "In and out of the mesh", Rows: edge},
		{Name: "Observability", Rows: observability, beside: true},
		{Name: "When things change or end", Rows: lifecycle, beside: true},
	}
}

// Pair is the classes of the clients' and the servers' proxies.
type Pair struct{ Client, Server string }

// String returns "CLIENT to SERVER".
func (p Pair) String() string { return p.Client + " to " + p.Server }

// Pairs returns every pair of the classes, sorted.
func Pairs(classes ...string) []Pair {
	classes = slices.Sorted(slices.Values(classes))
	var pairs []Pair
	for _, client := range classes {
		for _, server := range classes {
			pairs = append(pairs, Pair{client, server})
		}
	}
	return pairs
}
