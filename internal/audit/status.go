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
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// maxEvents limits the Problems of one object that become Events. The status contains
// all.
const maxEvents = 20

// setStatus writes the Problems to the status.
func setStatus(s source.Status, generation int64, problems []mesh.Problem) {
	*s.ObservedGeneration = generation
	*s.Conditions = source.Conditions(*s.Conditions, problems, generation, metav1.Now())
	if s.Legacy != nil {
		s.Legacy.CurrentStatus, s.Legacy.Reason = legacyStatus(problems)
	}
}

// legacyStatus formats Problems like Open Service Mesh, on one line.
func legacyStatus(problems []mesh.Problem) (currentStatus, reason string) {
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

// writeStatus writes an Event for each Problem that the object's status does not contain
// yet, and then the status, which records what has been reported. It does not change the
// object itself.
func writeStatus(ctx context.Context, c client.Client, kind source.Kind, ref mesh.ObjectRef, obj client.Object, problems []mesh.Problem) error {
	former := kind.Status(obj)
	fresh := slices.DeleteFunc(slices.Clone(problems), func(p mesh.Problem) bool { return source.Reported(*former.Conditions, p) })
	if err := announce(ctx, c, ref, obj, fresh); err != nil {
		return err
	}
	updated, ok := obj.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("copying %T", obj)
	}
	next := kind.Status(updated)
	setStatus(next, obj.GetGeneration(), problems)
	if equality.Semantic.DeepEqual(former, next) {
		return nil
	}
	return updateStatus(ctx, c, updated)
}

// writeGatewayStatus is writeStatus for objects of Gateway API.
func writeGatewayStatus(ctx context.Context, c client.Client, kind source.Kind, ref mesh.ObjectRef, obj client.Object, found *fact.Problems) error {
	updated, ok := obj.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("copying %T", obj)
	}
	fresh, changed := kind.SetGatewayStatus(updated, found, metav1.Now())
	if err := announce(ctx, c, ref, obj, fresh); err != nil || !changed {
		return err
	}
	return updateStatus(ctx, c, updated)
}

// announce writes an Event for each Problem.
func announce(ctx context.Context, c client.Client, ref mesh.ObjectRef, obj client.Object, problems []mesh.Problem) error {
	for _, p := range problems[:min(len(problems), maxEvents)] {
		// A Problem that was solved and comes back is a new one.
		key := fmt.Sprintf("%d %s %s", obj.GetGeneration(), p.Field, p.Message)
		if err := Warn(ctx, c, referenceTo(ref, obj.GetUID()), p.Reason, key, textOf(p)); err != nil {
			return err
		}
	}
	return nil
}

func updateStatus(ctx context.Context, c client.Client, updated client.Object) error {
	err := c.Status().Update(ctx, updated)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // The newer object will be reconciled.
	}
	if err != nil {
		return fmt.Errorf("writing the status of %T %s/%s: %w", updated, updated.GetNamespace(), updated.GetName(), err)
	}
	return nil
}

// textOf returns a Problem without its object and reason.
func textOf(p mesh.Problem) string {
	if p.Field == "" {
		return p.Message
	}
	return p.Field + ": " + p.Message
}

// referenceTo returns the reference for an Event. An Event about a Namespace is written
// in that namespace.
func referenceTo(ref mesh.ObjectRef, uid types.UID) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: ref.APIVersion, Kind: ref.Kind, Namespace: home(ref), Name: ref.Name, UID: uid}
}

// home returns the namespace of an object. For a Namespace it is the namespace itself.
func home(ref mesh.ObjectRef) string {
	if ref.Kind == kindNamespace {
		return ref.Name
	}
	return ref.Namespace
}
