package behaviour

import (
	"slices"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
)

// Row is a sentence about the mesh that is true of a pair of classes, or that a driver
// does not claim.
type Row struct {
	// Name is the row's in the table, and what a reader looks for.
	Name string
	// Says is the sentence.
	Says string
	// Needs is what the drivers of the two sides must declare.
	Needs Needs
	// proves asks the mesh. It leaves the town as it found it.
	proves func(t *testing.T, w *world)
}

// Needs are the features that the driver of the clients and that of the servers must
// declare for a row to be asked at all.
type Needs struct{ Client, Server []mesh.Feature }

// ofEvery is of rows that hold for every driver.
var ofEvery Needs

func ofClient(features ...mesh.Feature) Needs { return Needs{Client: features} }

func ofServer(features ...mesh.Feature) Needs { return Needs{Server: features} }

func ofBoth(features ...mesh.Feature) Needs { return Needs{Client: features, Server: features} }

// MetBy reports whether the registered drivers of the pair declare what is needed.
func (n Needs) MetBy(p Pair) bool {
	return declares(p.Client, n.Client) && declares(p.Server, n.Server)
}

// declares reports whether the driver of a class declares all of the features.
func declares(class string, features []mesh.Feature) bool {
	declared := sidecar.Features(class)
	return !slices.ContainsFunc(features, func(f mesh.Feature) bool { return !slices.Contains(declared, f) })
}

// Chapter is rows that belong together.
type Chapter struct {
	Name string
	Rows []Row
}

// Chapters returns the table.
func Chapters() []Chapter {
	return []Chapter{
		{"Who may call", access},
		{"On the wire", wire},
		{"Held up by strangers", strangers},
		{"Protocols", protocols},
		{"Traffic", traffic},
		{"In and out of the mesh", edge},
		{"Observability", observability},
		{"When things change or end", lifecycle},
	}
}

// Pair is the classes of the clients' proxies and of the servers'.
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
