package audit

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	accessv1alpha3 "github.com/outrigger-mesh/outrigger/apis/access/v1alpha3"
	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	policyv1alpha1 "github.com/outrigger-mesh/outrigger/apis/policy/v1alpha1"
	specsv1alpha4 "github.com/outrigger-mesh/outrigger/apis/specs/v1alpha4"
	splitv1alpha4 "github.com/outrigger-mesh/outrigger/apis/split/v1alpha4"
	"github.com/outrigger-mesh/outrigger/apis/status"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// maxEvents is how many Problems of one object become Events. Its status names all.
const maxEvents = 20

// verdict points to what the status of an object says of its Problems.
type verdict struct {
	ObservedGeneration *int64
	Conditions         *[]metav1.Condition
	// Legacy is nil for kinds to which Open Service Mesh gave no status.
	Legacy *policyv1alpha1.PolicyStatus
}

// verdictOf returns where an object has its status, and false if its kind has none
// for Problems.
func verdictOf(obj client.Object) (verdict, bool) {
	switch obj := obj.(type) {
	case *v1alpha2.MeshConfig:
		return verdict{&obj.Status.ObservedGeneration, &obj.Status.Conditions, nil}, true
	case *accessv1alpha3.TrafficTarget:
		return smi(&obj.Status), true
	case *specsv1alpha4.HTTPRouteGroup:
		return smi(&obj.Status), true
	case *specsv1alpha4.TCPRoute:
		return smi(&obj.Status), true
	case *splitv1alpha4.TrafficSplit:
		return smi(&obj.Status), true
	case *policyv1alpha1.Egress:
		return legacy(&obj.Status), true
	case *policyv1alpha1.IngressBackend:
		return legacy(&obj.Status), true
	case *policyv1alpha1.Retry:
		return legacy(&obj.Status), true
	case *policyv1alpha1.UpstreamTrafficSetting:
		return legacy(&obj.Status), true
	}
	return verdict{}, false
}

func smi(s *status.Status) verdict { return verdict{&s.ObservedGeneration, &s.Conditions, nil} }

func legacy(s *policyv1alpha1.PolicyStatus) verdict {
	return verdict{&s.ObservedGeneration, &s.Conditions, s}
}

func (v verdict) set(generation int64, problems []mesh.Problem) {
	*v.ObservedGeneration = generation
	*v.Conditions = source.Conditions(*v.Conditions, problems, generation, metav1.Now())
	if v.Legacy != nil {
		v.Legacy.CurrentStatus, v.Legacy.Reason = legacyWords(problems)
	}
}

// legacyWords tells of Problems as Open Service Mesh did, in one line.
func legacyWords(problems []mesh.Problem) (currentStatus, reason string) {
	problems = slices.DeleteFunc(slices.Clone(problems), mesh.Problem.IsAdvice)
	if len(problems) == 0 {
		return "committed", "the object is in use"
	}
	var lines []string
	for _, p := range problems {
		lines = append(lines, textOf(p))
	}
	slices.Sort(lines)
	return "error", strings.Join(lines, "; ")
}

// tell writes an Event for each Problem that the status of an object does not name
// yet, and then the status, which is the memory of what has been told. The object
// itself is not changed.
func tell(ctx context.Context, c client.Client, obj client.Object, problems []mesh.Problem) error {
	was, _ := verdictOf(obj)
	for _, p := range problems[:min(len(problems), maxEvents)] {
		if source.Told(*was.Conditions, p) {
			continue
		}
		// A Problem that was solved and comes back is a new one.
		key := fmt.Sprintf("%d %s %s", obj.GetGeneration(), p.Field, p.Message)
		if err := Warn(ctx, c, referenceTo(obj), p.Reason, key, textOf(p)); err != nil {
			return err
		}
	}
	updated, ok := obj.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("copying %T", obj)
	}
	is, _ := verdictOf(updated)
	is.set(obj.GetGeneration(), problems)
	if equality.Semantic.DeepEqual(was, is) {
		return nil
	}
	err := c.Status().Update(ctx, updated)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // A newer object is on its way here.
	}
	if err != nil {
		return fmt.Errorf("writing the status of %T %s/%s: %w", obj, obj.GetNamespace(), obj.GetName(), err)
	}
	return nil
}

// textOf is a Problem without its object and its reason.
func textOf(p mesh.Problem) string {
	if p.Field == "" {
		return p.Message
	}
	return p.Field + ": " + p.Message
}

// referenceTo names an object for an Event. An Event is in the namespace of what it
// is about, a namespace too.
func referenceTo(obj client.Object) corev1.ObjectReference {
	ref, _ := source.Ref(obj)
	return corev1.ObjectReference{
		APIVersion: ref.APIVersion, Kind: ref.Kind, Namespace: home(ref), Name: ref.Name, UID: obj.GetUID(),
	}
}

// home is the namespace that an object is in, which a Namespace is itself.
func home(ref mesh.ObjectRef) string {
	if ref.Kind == kindNamespace {
		return ref.Name
	}
	return ref.Namespace
}
