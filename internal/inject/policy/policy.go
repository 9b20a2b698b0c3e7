// Package policy turns the injection of sidecars into admission policies, with which the API
// server itself injects, without a webhook.
//
// It calls the injector for a pod made for that purpose, and writes the difference as expressions
// in CEL, Kubernetes' language for policies. What cannot be expressed is left to the webhook, or
// denied by a second policy if there is no webhook. docs/injection.md lists it.
package policy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	admission "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// Mode says what injects pods.
type Mode string

// The modes, which are the values of injector.mode of the chart.
const (
	// ModeWebhook is the webhook alone, without policies.
	ModeWebhook Mode = "webhook"
	// ModePolicy is the policies alone. Pods that they cannot inject are denied.
	ModePolicy Mode = "policy"
	// ModeBoth is the policies, and the webhook for pods that they cannot inject.
	ModeBoth Mode = "both"
)

// Options select the policies to make.
type Options struct {
	// Mode is ModePolicy or ModeBoth.
	Mode Mode
	// Name begins the names of all objects. It is a DNS subdomain.
	Name string
	// Classes are the classes of sidecars for which to make policies.
	Classes []string
	// Labels are set on all objects.
	Labels map[string]string
}

// Policies are the admission policies of one configuration.
type Policies struct {
	// Objects are the policies, each followed by its binding. The name of a policy contains a
	// digest of its content, so that objects of two configurations can exist side by side.
	Objects []runtime.Object
	// Left says of each class without a policy why it has none.
	Left map[string]string
}

// Labels of the policies and bindings that a mesh's controller makes.
const (
	// MeshLabel has the name of the mesh, and RevisionLabel that of the revision.
	MeshLabel     = "openservicemesh.io/policy-of"
	RevisionLabel = "openservicemesh.io/policy-revision"
)

// guardName is the part of the guard's name in place of a class.
const guardName = "guard"

// digestLabel, on each object, has the digest of its policy.
const digestLabel = "openservicemesh.io/policy-digest"

// New returns the policies for the injection of the model. A class that cannot be made into a
// policy is in Left. With ModePolicy the pods of such a class are denied. The error says that there
// is no such mode or no configuration.
func New(ctx context.Context, model *inject.Model, o Options) (*Policies, error) {
	if model == nil {
		return nil, errors.New("the injection config cannot be read")
	}
	if o.Mode != ModePolicy && o.Mode != ModeBoth {
		return nil, fmt.Errorf("the mode %q has no policies; it must be %s or %s", o.Mode, ModePolicy, ModeBoth)
	}
	rules := model.Rules()
	p := &Policies{Left: make(map[string]string)}
	var made []*change
	for _, class := range o.Classes {
		if why := unsuited(model, rules, o.Mode); why != "" {
			p.Left[class] = why
			continue
		}
		change, err := learn(ctx, model, class)
		if err != nil {
			p.Left[class] = err.Error()
			continue
		}
		made = append(made, change)
		p.addInjection(o, rules, model.DefaultClass(), change)
	}
	if o.Mode == ModePolicy {
		p.addGuard(o, rules, model.DefaultClass(), made)
	}
	return p, nil
}

// unsuited returns why the settings need the webhook for every class, or "".
func unsuited(model *inject.Model, rules inject.Rules, mode Mode) string {
	switch {
	case !model.NativeSidecars():
		return "an admission policy injects native sidecars only, and the injection config has nativeSidecars: false; remove that, or use the mode webhook"
	case rules.Istio && mode == ModePolicy:
		return "an admission policy does not read Istio's labels and annotations, which the injection config has switched on by compat.istio; use the mode both"
	}
	return ""
}

// addInjection adds the policy that injects pods of a class.
func (p *Policies) addInjection(o Options, rules inject.Rules, defaultClass string, c *change) {
	fail, again := admission.Fail, admission.IfNeededReinvocationPolicy
	e := &expressions{rules: rules, defaultClass: defaultClass}
	spec := admission.MutatingAdmissionPolicySpec{
		MatchConstraints: constraints(rules),
		FailurePolicy:    &fail, ReinvocationPolicy: again,
		MatchConditions: e.conditions(c.class),
	}
	spec.Variables = append(e.decide(), e.probes()...)
	spec.Variables = append(spec.Variables, admission.Variable{Name: "unable", Expression: e.unable(limitsOf(c))})
	spec.Variables = append(spec.Variables, c.variables()...)
	// The patch names the policy, so the digest is that of the policy with another name.
	digest := digestOf(spec, c.patch(""))
	name := o.Name + "." + nameOf(c.class) + "." + digest
	spec.Mutations = []admission.Mutation{{PatchType: admission.PatchTypeJSONPatch, JSONPatch: &admission.JSONPatch{
		Expression: fmt.Sprintf("variables.class != %s || variables.decision != 'inject' || size(variables.unable) > 0 ? [] : %s", quote(c.class), c.patch(name)),
	}}}
	meta := metaOf(o, name, digest)
	p.Objects = append(p.Objects,
		&admission.MutatingAdmissionPolicy{TypeMeta: typeOf("MutatingAdmissionPolicy"), ObjectMeta: meta, Spec: spec},
		&admission.MutatingAdmissionPolicyBinding{TypeMeta: typeOf("MutatingAdmissionPolicyBinding"), ObjectMeta: meta, Spec: admission.MutatingAdmissionPolicyBindingSpec{PolicyName: name}})
}

// addGuard adds the policy that denies pods which need a sidecar and did not get one.
func (p *Policies) addGuard(o Options, rules inject.Rules, defaultClass string, made []*change) {
	fail := admission.Fail
	e := &expressions{rules: rules, defaultClass: defaultClass}
	spec := admission.ValidatingAdmissionPolicySpec{MatchConstraints: constraints(rules), FailurePolicy: &fail}
	spec.Variables = append(e.decide(), e.probes()...)
	spec.Variables = append(spec.Variables,
		admission.Variable{Name: "unable", Expression: e.unable(limitsOf(made...))},
		admission.Variable{Name: "injected", Expression: fmt.Sprintf("%s in variables.podAnnotations && variables.all.exists(e, e.c.name == 'outrigger-proxy')", quote(inject.StatusAnnotation))},
		admission.Variable{Name: "late", Expression: e.late()},
	)
	spec.Validations = []admission.Validation{{
		Expression:        "variables.decision == 'skip' || variables.decision == 'inject' && variables.injected && size(variables.late) == 0",
		MessageExpression: e.message(made),
	}}
	digest := digestOf(spec, "")
	name := o.Name + "." + guardName + "." + digest
	meta := metaOf(o, name, digest)
	p.Objects = append(p.Objects,
		&admission.ValidatingAdmissionPolicy{TypeMeta: typeOf("ValidatingAdmissionPolicy"), ObjectMeta: meta, Spec: spec},
		&admission.ValidatingAdmissionPolicyBinding{TypeMeta: typeOf("ValidatingAdmissionPolicyBinding"), ObjectMeta: meta, Spec: admission.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admission.ValidationAction{admission.Deny},
		}})
}

func typeOf(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: admission.SchemeGroupVersion.String(), Kind: kind}
}

func metaOf(o Options, name, digest string) metav1.ObjectMeta {
	labels := map[string]string{digestLabel: digest}
	for key, value := range o.Labels {
		labels[key] = value
	}
	return metav1.ObjectMeta{Name: name, Labels: labels}
}

// digestOf returns a short digest of a policy's spec and of what is not yet in it.
func digestOf(spec any, more string) string {
	text, err := json.Marshal(spec)
	if err != nil {
		panic(err) // Its fields are texts and lists of them.
	}
	sum := sha256.Sum256(append(text, more...))
	return hex.EncodeToString(sum[:5])
}

// nameOf returns a class as a part of an object's name. Two classes may have the same; the digest
// distinguishes their policies.
func nameOf(class string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(class)), "-")
}

// constraints select the creation of pods in namespaces of the mesh: the rules namespace_exempt,
// namespace_ignored and namespace_not_monitored of docs/injection.md.
func constraints(rules inject.Rules) *admission.MatchResources {
	equivalent, scope := admission.Equivalent, admission.NamespacedScope
	return &admission.MatchResources{
		MatchPolicy: &equivalent,
		NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: slices.Concat(inject.ExemptNamespaces(), []string{rules.MeshNamespace})},
			{Key: metadata.Ignore, Operator: metav1.LabelSelectorOpDoesNotExist},
			{Key: metadata.MonitoredBy, Operator: metav1.LabelSelectorOpIn, Values: []string{rules.MeshName}},
		}},
		ObjectSelector: &metav1.LabelSelector{},
		ResourceRules: []admission.NamedRuleWithOperations{{RuleWithOperations: admission.RuleWithOperations{
			Operations: []admission.OperationType{admission.Create},
			Rule:       admission.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}, Scope: &scope},
		}}},
	}
}
