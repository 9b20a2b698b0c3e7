package fact

import "github.com/outrigger-mesh/outrigger/mesh"

// Snapshot is the state of the mesh at one moment. It is immutable and safe for
// concurrent use.
type Snapshot struct {
	Settings *mesh.Settings
	// Views has the View of every proxy, by pod UID.
	Views Views
	// Namespaces are those of the mesh, by name.
	Namespaces mesh.Table[*Namespace]
	// Services and Workloads are those of the mesh, by namespace/name.
	Services  mesh.Table[*Service]
	Workloads mesh.Table[*Workload]
	// Problems are keyed by the objects' String.
	Problems mesh.Table[*Problems]
}

// Digest returns a digest of everything in the Snapshot.
func (s *Snapshot) Digest() mesh.Digest {
	return mesh.JoinDigests(s.Settings.Digest(), s.Views.Digest(), s.Namespaces.Digest(), s.Services.Digest(), s.Workloads.Digest(), s.Problems.Digest())
}

// Problems are the errors of one object, sorted by field and reason, and what else its status says.
type Problems struct {
	mesh.Sealed
	Object mesh.ObjectRef `json:"object"`
	List   []mesh.Problem `json:"list"`
	// Parents are the indexes of those parents of a Route that are Gateways of the mesh.
	Parents []int `json:"parents,omitempty"`
	// Gateway is set for Gateways of the mesh.
	Gateway *GatewayState `json:"gateway,omitempty"`
	// Features are those of the proxies of a GatewayClass of the mesh.
	Features []mesh.Feature `json:"features,omitempty"`
}
