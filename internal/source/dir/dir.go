// Package dir reads the objects of a mesh from manifests, for the commands that
// work without a cluster: files and folders of YAML and JSON, and standard input.
// What a cluster would add to them it adds: pods for Deployments and their like,
// addresses, EndpointSlices and namespaces. It gives the facts that internal/source
// finds in the objects; what the objects mean is decided there.
//
// Everything is a function of the manifests alone: the same files give the same
// facts, in whatever order they are named, on every machine.
//
// It imports no client of Kubernetes and talks to nobody.
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
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// Options say how manifests become facts.
type Options struct {
	// Mapper says how facts are found in objects. Its SidecarClass is about pods that
	// have a sidecar already.
	Mapper source.MapperOptions
	// Stdin is what the path "-" stands for.
	Stdin io.Reader
	// MeshConfig counts where the manifests have none. It may be nil.
	MeshConfig *v1alpha2.MeshConfig
	// OnMeshConfig, if it is not nil, is called with the MeshConfig that counts, or nil
	// where there is none, each time that the manifests have been read: before
	// Sidecar is asked and before facts are passed on.
	OnMeshConfig func(*v1alpha2.MeshConfig)
	// Sidecar returns the sidecar that a pod would get. It is asked once for all pods of
	// a Deployment or its like, and neither about pods that have a sidecar nor about those
	// with a UID, which an API server has admitted as they are. It must not change its
	// arguments. Nil means that no pod gets one.
	Sidecar func(pod *corev1.Pod, namespace *corev1.Namespace) Sidecar
	// OnUnread, if it is not nil, is called by Load with the kinds of the objects that
	// are not read and that no Problem is about, and how many there are of each.
	OnUnread func(map[schema.GroupKind]int)
}

// Sidecar is a sidecar that a pod would get. The zero Sidecar is none.
type Sidecar struct {
	// Class is its driver's name, in lower case.
	Class string
	// Redirection says which connections of the pod go through it.
	Redirection agentspec.Redirection
}

// The reasons of Problems with manifests. Others are in package source.
const (
	// ReasonUnreadable says that a file, a document of it or an object in it cannot
	// be read.
	ReasonUnreadable = "Unreadable"
	// ReasonTooMany says that there is more of something than is read or made.
	ReasonTooMany = "TooMany"
)

// Load reads the manifests once. A path is a file, a folder, of which all .yaml,
// .yml and .json files at any depth are read but for those that begin with a dot,
// or "-" for standard input. Facts and Problems are sorted by object. The Problems
// are those of reading; what is wrong with objects by themselves is in their facts.
// An error means that a path is not there, or that there are no manifests in any.
func Load(paths []string, opts Options) ([]mesh.Fact, []mesh.Problem, error) {
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
	return facts, sorted(append(problems, more...)), nil
}

// Cluster is the objects of manifests and what a cluster would add to them, for who
// would run it. Nobody may change what is in it.
type Cluster struct {
	// Namespaces, Pods and Services are sorted by namespace and name. Pods have UIDs
	// and addresses, and services have addresses.
	Namespaces []*corev1.Namespace
	Pods       []*corev1.Pod
	Services   []*corev1.Service
}

// ReadCluster reads the manifests as Load does, and returns the objects themselves.
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

// factsOf returns the facts in the objects and in what a cluster would add.
func factsOf(objects []object, opts Options) ([]mesh.Fact, []mesh.Problem) {
	c := complete(objects, opts)
	opts.Mapper.SidecarClass, opts.Mapper.Redirection = c.sidecarClass, c.redirection
	mapper := source.NewMapper(opts.Mapper)
	all := c.all()
	facts := make([]mesh.Fact, 0, len(all))
	for _, obj := range all {
		if fact, ok := mapper.Fact(obj); ok {
			facts = append(facts, fact)
		}
	}
	slices.SortFunc(facts, func(a, b mesh.Fact) int { return compareRefs(a.Object, b.Object) })
	return facts, c.problems
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

// errStdin says that standard input was named where there is none.
var errStdin = errors.New("there is no standard input (-) to read; it cannot be watched")

// object is an object of a manifest, and where it stands.
type object struct {
	client.Object
	ref mesh.ObjectRef
	// where is a file and a line, for people.
	where string
}

// key tells objects apart. Versions of one kind are the same object, and a mesh has
// one MeshConfig.
func (o *object) key() string {
	group, _, _ := strings.Cut(o.ref.APIVersion, "/")
	if o.ref.Kind == "MeshConfig" {
		return o.ref.Kind
	}
	return group + "|" + o.ref.Kind + "|" + o.ref.Namespace + "|" + o.ref.Name
}

// unique drops objects that are there twice; the first counts.
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
			Message: fmt.Sprintf("%s: not read, because %s in %s counts; remove one of the two", o.where, first.ref, first.where)})
	}
	return kept, problems
}
