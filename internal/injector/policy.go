package injector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	admission "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/policy"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
	"github.com/outrigger-mesh/outrigger/sidecar"
)

// PolicyOptions returns the options of the admission policies of a mesh's revision, for all classes.
func PolicyOptions(mesh meshconfig.Mesh, mode policy.Mode) policy.Options {
	return policy.Options{
		Mode: mode, Name: inject.WebhookName(mesh.Revision, mesh.Name), Classes: sidecar.Drivers(),
		Labels: map[string]string{policy.MeshLabel: mesh.Name, policy.RevisionLabel: mesh.Revision,
			"app.kubernetes.io/name": "outrigger", "app.kubernetes.io/instance": mesh.Name},
	}
}

// PolicyOwner returns the name of the ClusterRole that owns the admission policies of a mesh. The
// chart uses the same name.
func PolicyOwner(meshName string) string {
	return strings.Replace(inject.WebhookName("", meshName), "outrigger-injector", "outrigger-controller-policies", 1)
}

// PolicyKeeper keeps the admission policies of a mesh as its configuration says. The fields are set
// before Run.
type PolicyKeeper struct {
	Client kubernetes.Interface
	Mesh   meshconfig.Mesh
	Mode   policy.Mode
	// Model returns the current injection once it is known, or nil if there is no usable
	// configuration. Then the policies stay as they are.
	Model func(ctx context.Context) (*inject.Model, error)
	// Changed is sent to when the configuration may have changed.
	Changed <-chan struct{}
	// Owner is the name of the ClusterRole with the rights to write policies. It owns them, so they
	// are deleted with it.
	Owner string
	Log   *slog.Logger
	// Overlap is how long new policies exist before old ones are deleted; 0 means
	// DefaultPolicyOverlap. An API server needs a second to know a policy.
	Overlap time.Duration
}

// DefaultPolicyOverlap is far more than an API server needs to take up a policy.
const DefaultPolicyOverlap = 15 * time.Second

// policyPeriod is how often changes of the policies by others are undone.
const policyPeriod = time.Minute

// policyRetry is the delay after a failure.
const policyRetry = 5 * time.Second

// Run keeps the policies until ctx ends.
func (k *PolicyKeeper) Run(ctx context.Context) error {
	if k.Overlap == 0 {
		k.Overlap = DefaultPolicyOverlap
	}
	var left map[string]string
	for {
		wait := policyPeriod
		p, stale, err := k.write(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			k.Log.Error("the admission policies cannot be kept up to date", "error", err)
			wait = policyRetry
		case stale:
			wait = k.Overlap
		}
		if p != nil {
			for class, why := range p.Left {
				if left[class] != why {
					k.Log.Warn("a class has no admission policy", "class", class, "reason", why)
				}
			}
			left = p.Left
		}
		select {
		case <-ctx.Done():
			return nil
		case <-k.Changed:
		case <-time.After(wait):
		}
	}
}

// write creates the policies that are missing, repairs others, and deletes old ones once all that
// replace them are old enough. Otherwise stale is true if there are old ones.
func (k *PolicyKeeper) write(ctx context.Context) (p *policy.Policies, stale bool, err error) {
	model, err := k.Model(ctx)
	if err != nil || model == nil {
		return nil, false, err
	}
	if p, err = policy.New(ctx, model, PolicyOptions(k.Mesh, k.Mode)); err != nil {
		return nil, false, err
	}
	owner, err := k.Client.RbacV1().ClusterRoles().Get(ctx, k.Owner, metav1.GetOptions{})
	if err != nil {
		return p, false, fmt.Errorf("finding the owner of the policies: %w", err)
	}
	reference := metav1.OwnerReference{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole", Name: owner.Name, UID: owner.UID}
	// Nothing of this is changed before all new objects exist.
	var youngest time.Time
	wanted := make(map[string]bool)
	for _, object := range p.Objects {
		created, err := k.apply(ctx, object, reference)
		if err != nil {
			return p, false, err
		}
		if created.After(youngest) {
			youngest = created
		}
		name, _ := meta.Accessor(object)
		wanted[kindOf(object)+"/"+name.GetName()] = true
	}
	old, err := k.old(ctx, wanted)
	if err != nil || len(old) == 0 {
		return p, false, err
	}
	if time.Since(youngest) < k.Overlap {
		return p, true, nil
	}
	var failed []error
	for _, o := range old {
		if err := o.remove(ctx, o.name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, err)
		}
	}
	if len(failed) == 0 {
		k.Log.Info("replaced admission policies", "objects", len(old))
	}
	return p, false, errors.Join(failed...)
}

func kindOf(object runtime.Object) string { return object.GetObjectKind().GroupVersionKind().Kind }

// apply writes an object and returns when it was created.
func (k *PolicyKeeper) apply(ctx context.Context, object runtime.Object, owner metav1.OwnerReference) (time.Time, error) {
	object = object.DeepCopyObject()
	o, err := meta.Accessor(object)
	if err != nil {
		return time.Time{}, err
	}
	o.SetOwnerReferences([]metav1.OwnerReference{owner})
	text, err := json.Marshal(object)
	if err != nil {
		return time.Time{}, err
	}
	force, api := true, k.Client.AdmissionregistrationV1()
	options := metav1.PatchOptions{FieldManager: "outrigger-controller", Force: &force}
	var written metav1.Object
	switch object.(type) {
	case *admission.MutatingAdmissionPolicy:
		written, err = api.MutatingAdmissionPolicies().Patch(ctx, o.GetName(), types.ApplyPatchType, text, options)
	case *admission.MutatingAdmissionPolicyBinding:
		written, err = api.MutatingAdmissionPolicyBindings().Patch(ctx, o.GetName(), types.ApplyPatchType, text, options)
	case *admission.ValidatingAdmissionPolicy:
		written, err = api.ValidatingAdmissionPolicies().Patch(ctx, o.GetName(), types.ApplyPatchType, text, options)
	case *admission.ValidatingAdmissionPolicyBinding:
		written, err = api.ValidatingAdmissionPolicyBindings().Patch(ctx, o.GetName(), types.ApplyPatchType, text, options)
	default:
		return time.Time{}, fmt.Errorf("there is no client for a %T", object)
	}
	switch {
	case apierrors.IsNotFound(err):
		return time.Time{}, fmt.Errorf("writing the %s %s: the API server has no such kind in admissionregistration.k8s.io/v1, which Kubernetes 1.36 and newer have; set injector.mode to webhook: %w", kindOf(object), o.GetName(), err)
	case err != nil:
		return time.Time{}, fmt.Errorf("writing the %s %s: %w", kindOf(object), o.GetName(), err)
	}
	return written.GetCreationTimestamp().Time, nil
}

// oldObject is an object that is no longer wanted.
type oldObject struct {
	name   string
	remove func(ctx context.Context, name string, options metav1.DeleteOptions) error
}

// old returns the objects of the mesh that are not wanted, bindings first.
func (k *PolicyKeeper) old(ctx context.Context, wanted map[string]bool) ([]oldObject, error) {
	api := k.Client.AdmissionregistrationV1()
	options := metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: PolicyOptions(k.Mesh, k.Mode).Labels})}
	var bindings, policies []oldObject
	add := func(into *[]oldObject, kind, name string, remove func(context.Context, string, metav1.DeleteOptions) error) {
		if !wanted[kind+"/"+name] {
			*into = append(*into, oldObject{name, remove})
		}
	}
	mutatingBindings, err1 := api.MutatingAdmissionPolicyBindings().List(ctx, options)
	mutating, err2 := api.MutatingAdmissionPolicies().List(ctx, options)
	validatingBindings, err3 := api.ValidatingAdmissionPolicyBindings().List(ctx, options)
	validating, err4 := api.ValidatingAdmissionPolicies().List(ctx, options)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, fmt.Errorf("listing the admission policies: %w", err)
	}
	for i := range mutatingBindings.Items {
		add(&bindings, "MutatingAdmissionPolicyBinding", mutatingBindings.Items[i].Name, api.MutatingAdmissionPolicyBindings().Delete)
	}
	for i := range validatingBindings.Items {
		add(&bindings, "ValidatingAdmissionPolicyBinding", validatingBindings.Items[i].Name, api.ValidatingAdmissionPolicyBindings().Delete)
	}
	for i := range mutating.Items {
		add(&policies, "MutatingAdmissionPolicy", mutating.Items[i].Name, api.MutatingAdmissionPolicies().Delete)
	}
	for i := range validating.Items {
		add(&policies, "ValidatingAdmissionPolicy", validating.Items[i].Name, api.ValidatingAdmissionPolicies().Delete)
	}
	return slices.Concat(bindings, policies), nil
}
