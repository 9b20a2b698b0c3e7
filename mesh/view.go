package mesh

// Proxy is one sidecar.
type Proxy struct {
	// UID is the UID of its pod, which is the proxy's key everywhere.
	UID string
	// Namespace and Name are those of its pod.
	Namespace, Name string
	// Class is the name of the driver that serves it.
	Class string
	// Identity is what its certificate says.
	Identity Identity
}

// Snapshot is the whole mesh at one moment. It is immutable: whoever holds one
// may read it from any goroutine for as long as it likes.
type Snapshot struct {
	// Proxies holds every proxy of the mesh by its UID.
	Proxies map[string]Proxy
	// Problems are what was wrong with the objects that it was made from.
	Problems []Problem
}

// View is all that one proxy may see of the mesh, and all that a driver sees.
// It is immutable.
type View struct {
	// Proxy is whose view it is.
	Proxy Proxy
	// Hash is the same for two views with the same content, on every replica
	// and after every restart.
	Hash string
}
