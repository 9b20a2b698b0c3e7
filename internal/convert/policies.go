package convert

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	outrigger "github.com/outrigger-mesh/outrigger/apis/outrigger/v1alpha1"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// policies are the policies that were made, and the Notes.
type policies struct {
	// taken are the names of AccessPolicies, of those that exist and of those that were made.
	taken map[mesh.Name]bool
	made  []*unstructured.Unstructured
	notes []Note
}

func newPolicies() *policies { return &policies{taken: map[mesh.Name]bool{}} }

func (p *policies) note(of mesh.ObjectRef, field, format string, args ...any) {
	p.notes = append(p.notes, Note{of, field, fmt.Sprintf(format, args...)})
}

// write adds as many AccessPolicies as the rules need.
func (p *policies) write(name mesh.Name, spec outrigger.AccessPolicySpec) {
	write := func(rules []outrigger.AccessRule) {
		spec.Rules = rules
		p.made = append(p.made, asObject(outrigger.SchemeGroupVersion.String(), "AccessPolicy", &outrigger.AccessPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: p.name(name)}, Spec: spec,
		}))
	}
	if len(spec.Rules) <= mostAccessRules {
		write(spec.Rules)
		return
	}
	for some := range slices.Chunk(spec.Rules, mostAccessRules) {
		write(some)
	}
}

// name returns a name that no other policy has.
func (p *policies) name(wanted mesh.Name) string {
	free := wanted
	for n := 2; p.taken[free]; n++ {
		free.Name = fmt.Sprintf("%s-%d", wanted.Name, n)
	}
	p.taken[free] = true
	return free.Name
}

// sorted returns the policies by namespace and name, and the Notes.
func (p *policies) sorted() ([]*unstructured.Unstructured, []Note) {
	slices.SortFunc(p.made, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetKind(), b.GetKind()), strings.Compare(a.GetName(), b.GetName()))
	})
	return p.made, p.notes
}
