// Package dir reads the objects of a mesh from manifests (files and folders of YAML and
// JSON, and standard input), for commands that work without a cluster. It adds what a
// cluster would add: pods for Deployments and other workloads, addresses,
// EndpointSlices and namespaces. It returns the facts that internal/source derives from
// the objects.
//
// The result depends only on the manifests: the same files give the same facts in any
// order and on every machine.
//
// The package must not import Kubernetes clients, and uses no network.
package dir

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Options configure the conversion of manifests to facts.
type Options struct {
	// Mapper configures the conversion of objects to facts. Its SidecarClass is called for
	// pods that already have a sidecar.
	Mapper source.MapperOptions
	// Stdin is read for the path "-".
	Stdin io.Reader
	// MeshConfig is used if the manifests have none. It may be nil.
	MeshConfig *v1alpha2.MeshConfig
	// OnMeshConfig, if not nil, is called with the effective MeshConfig, or nil, each time
	// the manifests have been read, before Sidecar is called and facts are returned.
	OnMeshConfig func(*v1alpha2.MeshConfig)
	// OnRootCertificates, if not nil, is called by Watch with the MeshRootCertificates of
	// the manifests each time they have been read, but not before all paths exist.
	OnRootCertificates func([]v1alpha2.MeshRootCertificate)
	// OnServerCertificates, if not nil, is called with the certificates for gateways and their private
	// keys, by the names of their Secrets, each time the manifests have been read, before facts
	// are returned.
	OnServerCertificates func(map[mesh.Name]driver.KeyPair)
	// Sidecar returns the sidecar that a pod would get. It is called once for all pods of
	// a workload, and not for pods that have a sidecar or a UID, which an API server has
	// already admitted. It must not change its arguments. Nil means that no pod gets one.
	Sidecar func(pod *corev1.Pod, namespace *corev1.Namespace) Sidecar
	// OnUnread, if not nil, is called by Load with the number of ignored objects by kind.
	// Objects with a Problem are not counted.
	OnUnread func(map[schema.GroupKind]int)
}

// Sidecar is the sidecar that a pod would get, zero for none.
type Sidecar struct {
	// Class is the name of its driver, in lower case.
	Class string
	// Redirection says which connections of the pod are redirected to it.
	Redirection agentspec.Redirection
}

// The reasons of Problems with manifests, in addition to those of package source.
const (
	// ReasonUnreadable: a file, a document or an object can't be read.
	ReasonUnreadable = "Unreadable"
	// ReasonTooMany: a limit on the number of objects or their size is exceeded.
	ReasonTooMany = "TooMany"
)

// Load reads the manifests once. A path is a file, a folder or "-" for standard input.
// Folders are searched recursively for .yaml, .yml and .json files; names that begin with
// a dot are skipped. Facts and Problems are sorted by object. The Problems are those of
// reading; errors in single objects are in their facts. Load returns an error if a path
// does not exist or there are no manifests.
func Load(paths []string, opts Options) ([]fact.Fact, []mesh.Problem, error) {
	r := newReader(paths, opts)
	objects, problems := r.read()
	if len(r.missing) > 0 {
		return nil, nil, r.missing[0].err
	}
	if len(r.files) == 0 {
		return nil, nil, fmt.Errorf("there is no .yaml, .yml or .json file in %s", strings.Join(paths, ", "))
	}
	if opts.OnUnread != nil {
		opts.OnUnread(r.unread())
	}
	facts, more := factsOf(objects, opts)
	return facts, sorted(append(once(problems, facts), more...)), nil
}

// once drops what the API server refuses if the facts have a Problem with the same field too.
func once(problems []mesh.Problem, facts []fact.Fact) []mesh.Problem {
	type place struct{ kind, namespace, name, field string }
	at := func(p mesh.Problem) place { return place{p.Object.Kind, p.Object.Namespace, p.Object.Name, p.Field} }
	found := make(map[place]bool)
	for i := range facts {
		for _, p := range facts[i].Problems {
			found[at(p)] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(problems), func(p mesh.Problem) bool {
		return p.Reason == source.ReasonInvalid && p.Field != "" && found[at(p)]
	})
}

// Cluster has the objects of manifests and those that a cluster would add, for running
// them. It must not be changed.
type Cluster struct {
	// Namespaces, Pods and Services are sorted by namespace and name. Pods have UIDs
	// and addresses, and services have addresses.
	Namespaces []*corev1.Namespace
	Pods       []*corev1.Pod
	Services   []*corev1.Service
}

// ReadCluster reads the manifests like Load and returns the objects.
func ReadCluster(paths []string, opts Options) (*Cluster, []mesh.Problem, error) {
	r := newReader(paths, opts)
	objects, problems := r.read()
	if len(r.missing) > 0 {
		return nil, nil, r.missing[0].err
	}
	c := complete(objects, opts)
	out := new(Cluster)
	for _, name := range slices.Sorted(maps.Keys(c.namespaces)) {
		out.Namespaces = append(out.Namespaces, c.namespaces[name])
	}
	for _, name := range byName(c.pods) {
		out.Pods = append(out.Pods, c.pods[name])
	}
	for _, name := range byName(c.services) {
		out.Services = append(out.Services, c.services[name])
	}
	return out, sorted(append(problems, c.problems...)), nil
}

// factsOf returns the facts of the objects and of those that a cluster would add.
func factsOf(objects []object, opts Options) ([]fact.Fact, []mesh.Problem) {
	c := complete(objects, opts)
	opts.Mapper.SidecarClass, opts.Mapper.Redirection = c.sidecarClass, c.redirection
	mapper := source.NewMapper(opts.Mapper)
	all := c.all()
	facts := make([]fact.Fact, 0, len(all))
	certificates := map[mesh.Name]driver.KeyPair{}
	for _, obj := range all {
		f, ok := mapper.Fact(obj)
		switch obj := obj.(type) {
		case *corev1.ConfigMap:
			f, ok = source.TokenKeys(obj)
		case *corev1.Secret:
			var pair driver.KeyPair
			if f, pair, ok = source.ServerCertificate(withText(obj)); ok && len(pair.Key) > 0 {
				certificates[mesh.Name{Namespace: obj.Namespace, Name: obj.Name}] = pair
			}
		}
		if ok {
			facts = append(facts, f)
		}
	}
	slices.SortFunc(facts, func(a, b fact.Fact) int { return compareRefs(a.Object, b.Object) })
	if opts.OnServerCertificates != nil {
		opts.OnServerCertificates(certificates)
	}
	return facts, c.problems
}

// withText returns a Secret whose Data has its StringData, as the API server makes it.
func withText(secret *corev1.Secret) *corev1.Secret {
	if len(secret.StringData) == 0 {
		return secret
	}
	whole := secret.DeepCopy()
	if whole.Data == nil {
		whole.Data = map[string][]byte{}
	}
	for key, text := range secret.StringData {
		whole.Data[key] = []byte(text)
	}
	return whole
}

func compareRefs(a, b mesh.ObjectRef) int {
	return cmp.Or(cmp.Compare(a.APIVersion, b.APIVersion), cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func sorted(problems []mesh.Problem) []mesh.Problem {
	slices.SortFunc(problems, func(a, b mesh.Problem) int {
		return cmp.Or(compareRefs(a.Object, b.Object), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message))
	})
	return problems
}

// errStdin reports that standard input is not available.
var errStdin = errors.New("standard input (-) is not available; it cannot be watched")

// object is an object of a manifest with its position.
type object struct {
	client.Object
	ref mesh.ObjectRef
	// where is the file and line, for messages.
	where string
}

// key identifies the object. All versions of a kind have the same key, and so have all
// MeshConfigs.
func (o *object) key() string {
	group, _, _ := strings.Cut(o.ref.APIVersion, "/")
	if o.ref.Kind == "MeshConfig" {
		return o.ref.Kind
	}
	return group + "|" + o.ref.Kind + "|" + o.ref.Namespace + "|" + o.ref.Name
}

// unique drops duplicates and keeps the first.
func unique(objects []object) ([]object, []mesh.Problem) {
	var problems []mesh.Problem
	seen := make(map[string]*object, len(objects))
	kept := objects[:0:0]
	for i := range objects {
		o := &objects[i]
		first, twice := seen[o.key()]
		if !twice {
			seen[o.key()] = o
			kept = append(kept, *o)
			continue
		}
		problems = append(problems, mesh.Problem{Object: o.ref, Reason: source.ReasonDuplicate,
			Message: fmt.Sprintf("%s: ignored, because %s in %s is used; remove one of the two", o.where, first.ref, first.where)})
	}
	return kept, problems
}
