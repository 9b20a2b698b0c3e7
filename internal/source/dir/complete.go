package dir

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// cluster has the objects of the manifests and those that a cluster would add. Objects of
// the manifests are never changed, since they may be used again.
type cluster struct {
	opts       Options
	namespaces map[string]*corev1.Namespace
	// pods and services are those of the manifests and those that were made.
	pods      map[types.NamespacedName]*corev1.Pod
	services  map[types.NamespacedName]*corev1.Service
	slices    []*discoveryv1.EndpointSlice
	workloads []workload
	// sidecars are those that pods would get.
	sidecars map[types.NamespacedName]Sidecar
	// others are objects that need nothing added.
	others   []client.Object
	problems []mesh.Problem
}

// complete adds what a cluster would add: namespaces, pods of workloads, addresses and
// EndpointSlices.
func complete(objects []object, opts Options) *cluster {
	c := &cluster{
		opts:       opts,
		namespaces: make(map[string]*corev1.Namespace),
		pods:       make(map[types.NamespacedName]*corev1.Pod),
		services:   make(map[types.NamespacedName]*corev1.Service),
		sidecars:   make(map[types.NamespacedName]Sidecar),
	}
	config := opts.MeshConfig
	for _, o := range objects {
		name := client.ObjectKeyFromObject(o.Object)
		switch obj := o.Object.(type) {
		case *corev1.Namespace:
			c.namespaces[name.Name] = obj
		case *corev1.Pod:
			c.pods[name] = new(*obj)
		case *corev1.Service:
			c.services[name] = new(*obj)
		case *discoveryv1.EndpointSlice:
			c.slices = append(c.slices, obj)
		case *v1alpha2.MeshConfig:
			config = obj
		default:
			if w, ok := newWorkload(o); ok {
				c.workloads = append(c.workloads, w)
			} else {
				c.others = append(c.others, obj)
			}
		}
	}
	if config != nil {
		c.others = append(c.others, config)
	}
	if opts.OnMeshConfig != nil {
		opts.OnMeshConfig(config)
	}
	c.addNamespaces()
	c.addPods()
	c.addUIDs()
	selected := c.selected()
	c.addAddresses(selected)
	c.addSlices(selected)
	return c
}

// all returns all objects that may have facts.
func (c *cluster) all() []client.Object {
	all := slices.Clone(c.others)
	for _, obj := range c.namespaces {
		all = append(all, obj)
	}
	for _, obj := range c.pods {
		all = append(all, obj)
	}
	for _, obj := range c.services {
		all = append(all, obj)
	}
	for _, obj := range c.slices {
		all = append(all, obj)
	}
	return all
}

func (c *cluster) add(object mesh.ObjectRef, reason, format string, args ...any) {
	c.problems = append(c.problems, mesh.Problem{Object: object, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// addNamespaces adds missing namespaces as members of the mesh with injection enabled.
// The namespace of the MeshConfig and of root certificates is the control plane's and is
// not added.
func (c *cluster) addNamespaces() {
	need := func(name string) {
		// Objects of the cluster have none.
		if name != "" && c.namespaces[name] == nil {
			c.namespaces[name] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
				Name:        name,
				Labels:      map[string]string{metadata.MonitoredBy: c.opts.Mapper.MeshName, corev1.LabelMetadataName: name},
				Annotations: map[string]string{metadata.Injection: "enabled"},
			}}
		}
	}
	for name := range c.pods {
		need(name.Namespace)
	}
	for name := range c.services {
		need(name.Namespace)
	}
	for _, obj := range c.slices {
		need(obj.Namespace)
	}
	for i := range c.workloads {
		need(c.workloads[i].ref.Namespace)
	}
	for _, obj := range c.others {
		switch obj.(type) {
		case *v1alpha2.MeshConfig, *v1alpha2.MeshRootCertificate:
		default:
			need(obj.GetNamespace())
		}
	}
}

// uid returns a UUID (RFC 9562, version 8) that depends only on the object's kind and
// name.
func uid(kind string, name types.NamespacedName) types.UID {
	id := sha256.Sum256([]byte(kind + "/" + name.String()))
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", id[0:4], id[4:6], id[6:8], id[8:10], id[10:16]))
}

// byName returns the sorted keys of a map.
func byName[V any](all map[types.NamespacedName]V) []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(all), compareNames)
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func objectRef(apiVersion, kind string, name types.NamespacedName) mesh.ObjectRef {
	return mesh.ObjectRef{APIVersion: apiVersion, Kind: kind, Namespace: name.Namespace, Name: name.Name}
}
