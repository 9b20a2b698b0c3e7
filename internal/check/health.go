package check

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/policy"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

func rbac(f *Facts, r *report) {
	const fix = "apply the chart again: outrigger upgrade"
	switch {
	case f.refused.err != nil:
		r.add(Warning, "", "ask somebody with the right to create subjectaccessreviews to run this check", "the controller's rights cannot be checked: %v", f.refused.err)
	case len(f.refused.value) > 0:
		r.add(Error, "ServiceAccount/"+f.options.Namespace+"/"+controllerName, fix, "it lacks the rights: %s", strings.Join(f.refused.value, ", "))
	default:
		r.ok("the controller has all rights that it needs")
	}
}

func deployments(f *Facts, r *report) {
	if r.lost("the control plane's Deployments", f.deployments.err) {
		return
	}
	found := make(map[string]bool)
	for i := range f.deployments.value {
		d := &f.deployments.value[i]
		found[d.Labels["app"]] = true
		want := int32(1)
		if d.Spec.Replicas != nil {
			want = *d.Spec.Replicas
		}
		object := "Deployment/" + d.Namespace + "/" + d.Name
		switch {
		case want == 0:
			r.add(Error, object, fmt.Sprintf("kubectl scale -n %s deployment/%s --replicas=2", d.Namespace, d.Name), "it is scaled to 0")
		case d.Status.ReadyReplicas == 0:
			r.add(Error, object, fmt.Sprintf("kubectl describe pods -n %s -l app=%s", d.Namespace, d.Labels["app"]), "none of %s is ready", count(int(want), "replica"))
		case d.Status.ReadyReplicas < want:
			r.add(Warning, object, fmt.Sprintf("kubectl describe pods -n %s -l app=%s", d.Namespace, d.Labels["app"]), "%d of %d replicas are ready", d.Status.ReadyReplicas, want)
		default:
			r.add(OK, object, "", "%s %s ready", count(int(want), "replica"), are(int(want)))
		}
	}
	if !found[controllerName] {
		r.add(Error, "Deployment/"+f.options.Namespace+"/"+controllerName, "outrigger install, or name the control plane's namespace with --mesh-namespace", "it does not exist")
	}
}

func drivers(f *Facts, r *report) {
	for _, name := range sorted(f.ready) {
		if err := f.ready[name]; err != nil {
			r.add(Error, "Pod/"+f.options.Namespace+"/"+name, "docs/debug.md explains each line, and the controller's log has the cause", "it is not ready: %v", err)
		} else {
			r.add(OK, "Pod/"+f.options.Namespace+"/"+name, "", "it is ready, and so are all drivers")
		}
	}
	if len(f.ready) == 0 {
		r.add(Error, "", "see the check control-plane/deployments", "no controller is running")
	}
}

func versions(f *Facts, r *report) {
	numbers := make(map[string]bool)
	for _, name := range sorted(f.versions) {
		object := "Pod/" + f.options.Namespace + "/" + name
		version := f.versions[name]
		if version.err != nil {
			r.add(Warning, object, "the pod's log says whether it serves", "it does not report its version: %v", version.err)
			continue
		}
		numbers[version.value] = true
		if version.value != f.options.Version {
			r.add(Warning, object, "use version "+version.value+" of this program, or upgrade the control plane", "its version is %s, but this program's version is %s", version.value, f.options.Version)
		}
	}
	if len(numbers) > 1 {
		r.add(Warning, "", "wait until the rollout has finished, or find out why it does not", "the control plane has more than one version: %s", strings.Join(sorted(numbers), ", "))
	}
	agents := make(map[string]int)
	var sample = make(map[string]*corev1.Pod)
	for i := range f.pods.value {
		pod := &f.pods.value[i]
		for _, c := range pod.Spec.InitContainers {
			if c.Name == driver.InitContainer {
				agents[c.Image]++
				sample[c.Image] = pod
			}
		}
	}
	if created := f.dryRun.value; created != nil && f.dryRun.err == nil {
		for _, c := range created.Spec.InitContainers {
			if c.Name != driver.InitContainer {
				continue
			}
			for _, image := range sorted(agents) {
				if image != c.Image {
					r.add(Warning, "", "restart these pods, so that they get the current agent: kubectl rollout restart", "%s %s the agent %s, for example %s/%s, but new pods get %s",
						count(agents[image], "pod"), has(agents[image]), image, sample[image].Namespace, sample[image].Name, c.Image)
				}
			}
		}
	}
	if len(r.findings) == 0 {
		r.ok("this program, the control plane and %s have version %s", count(len(f.pods.value), "pod"), f.options.Version)
	}
}

func has(n int) string {
	if n == 1 {
		return "has"
	}
	return "have"
}

func meshConfig(f *Facts, r *report) {
	object := "MeshConfig/" + f.options.Namespace + "/" + f.options.MeshConfig
	switch {
	case apierrors.IsNotFound(f.meshConfig.err):
		r.add(Error, object, "outrigger upgrade, which creates it", "it does not exist")
		return
	case f.meshConfig.err != nil:
		r.lost("the MeshConfig", f.meshConfig.err)
		return
	}
	conditions, _, _ := unstructured.NestedSlice(f.meshConfig.value.Object, "status", "conditions")
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		bad := condition["type"] == "Accepted" && condition["status"] == "False"
		degraded := condition["status"] == "True" && (condition["type"] == "Degraded" || condition["type"] == "NoEffect")
		if bad || degraded {
			level := Warning
			if bad {
				level = Error
			}
			r.add(level, object, "change the fields that the message names", "%v: %v", condition["reason"], condition["message"])
		}
	}
	if len(r.findings) == 0 {
		r.add(OK, object, "", "it is accepted")
	}
}

// soon is how long before its expiry a CA is reported.
const soon = 7 * 24 * time.Hour

// ends returns the latest expiry of the certificates in a PEM text.
func ends(text []byte) (latest time.Time, err error) {
	certificates, err := pki.Parse(text)
	for _, certificate := range certificates {
		if certificate.NotAfter.After(latest) {
			latest = certificate.NotAfter
		}
	}
	return latest, err
}

func webhookCA(f *Facts, r *report) {
	if r.lost("the webhook configurations", f.hooks.err) {
		return
	}
	object := "MutatingWebhookConfiguration/" + f.options.Webhook
	for _, hook := range f.hooks.value {
		if hook.Name != f.options.Webhook {
			continue
		}
		for _, w := range hook.Webhooks {
			end, err := ends(w.ClientConfig.CABundle)
			const fix = "see the injector's log: the injector updates the caBundle, unless the value injector.patchCABundle is false"
			switch {
			case len(w.ClientConfig.CABundle) == 0:
				r.add(Error, object, fix, "webhook %s has no caBundle, so the API server cannot create the pods for which it calls the webhook", w.Name)
			case err != nil:
				r.add(Error, object, fix, "the caBundle of webhook %s cannot be read: %v", w.Name, err)
			case end.Before(f.now):
				r.add(Error, object, fix, "the CA of webhook %s expired at %s", w.Name, end.UTC().Format(time.RFC3339))
			case end.Before(f.now.Add(soon)):
				r.add(Warning, object, fix, "the CA of webhook %s expires at %s", w.Name, end.UTC().Format(time.RFC3339))
			}
		}
		if len(r.findings) == 0 {
			r.add(OK, object, "", "%s %s a valid CA", count(len(hook.Webhooks), "webhook"), has(len(hook.Webhooks)))
		}
		return
	}
	if f.injection() == policy.ModePolicy {
		r.ok("there is no webhook: admission policies inject sidecars")
		return
	}
	r.add(Error, object, "outrigger upgrade; if the injector is deliberately not installed, use 'outrigger inject'", "it does not exist, so no pod gets a sidecar")
}

func policies(f *Facts, r *report) {
	if r.lost("the control plane's Deployments", f.deployments.err) {
		return
	}
	mode := f.injection()
	if mode == policy.ModeWebhook {
		r.ok("the webhook injects sidecars")
		return
	}
	if err := cmp.Or(f.policies.err, f.bindings.err); apierrors.IsNotFound(err) {
		r.add(Error, "", "upgrade Kubernetes to 1.36, or set injector.mode: webhook", "the API server has no MutatingAdmissionPolicies of admissionregistration.k8s.io/v1, with which injector.mode: %s injects", mode)
		return
	} else if r.lost("the admission policies", err) {
		return
	}
	bound := make(map[string]bool)
	for i := range f.bindings.value {
		bound[f.bindings.value[i].Spec.PolicyName] = true
	}
	for i := range f.policies.value {
		name := f.policies.value[i].Name
		if !bound[name] {
			r.add(Error, "MutatingAdmissionPolicy/"+name, "see the controller's log, which has the reason", "it has no binding, so it injects nothing")
		}
	}
	switch {
	case len(f.policies.value) == 0:
		r.add(Error, "", "see the controller's log, which has the reason", "there is no admission policy, with which injector.mode: %s injects", mode)
	case len(r.findings) == 0:
		r.ok("admission policies inject sidecars; there are %d", len(f.policies.value))
	}
}

func answers(f *Facts, r *report) {
	object := "Namespace/" + f.tried
	switch {
	case f.members.err != nil:
		r.lost("the namespaces", f.members.err)
	case f.tried == "":
		r.add(Warning, "", "outrigger namespace add NAMESPACE", "no namespace of the mesh accepts the pod for the dry run, so the webhook is not tested")
	case apierrors.IsForbidden(f.dryRun.err) && !strings.Contains(f.dryRun.err.Error(), "webhook"):
		r.add(Warning, object, "run this check as somebody with the right to create pods there, and see the namespace's quota", "the pod for the dry run is rejected before the webhook is called: %v", f.dryRun.err)
	case f.dryRun.err != nil && f.injection() == policy.ModePolicy:
		r.add(Error, object, "see the check webhook/policies", "no pod can be created: %v", f.dryRun.err)
	case f.dryRun.err != nil:
		r.add(Error, object, "see the checks webhook/ca and control-plane/deployments, and test whether the API server can connect to port 9090 of the injector", "no pod can be created: %v", f.dryRun.err)
	case !slices.ContainsFunc(slices.Concat(f.dryRun.value.Spec.InitContainers, f.dryRun.value.Spec.Containers), func(c corev1.Container) bool { return c.Name == driver.ProxyContainer }):
		r.add(Error, object, "see the checks webhook/ca and webhook/policies, and the selectors of the webhook configuration", "a pod that requests a sidecar is created without one")
	default:
		r.add(OK, object, "", "the pod of a dry run gets a sidecar")
	}
}

func podCertificates(f *Facts, r *report) {
	const setting = "spec.certificate.podCertificates"
	object := "ClusterTrustBundle/" + inject.TrustBundleName(f.options.Mesh)
	switch err := f.kubeletBundle.err; {
	case !apierrors.IsNotFound(f.meshConfig.err) && r.lost("MeshConfig "+f.options.Namespace+"/"+f.options.MeshConfig, f.meshConfig.err):
	case !f.wantsPodCertificates():
		r.ok("agents request certificates, not kubelets")
	case errors.Is(err, kube.ErrNoPodCertificates):
		r.add(Warning, "MeshConfig/"+f.options.Namespace+"/"+f.options.MeshConfig, "switch the feature gates on in kube-apiserver and the kubelets, or unset "+setting,
			"%s is set, but agents request the certificates: %v", setting, err)
	case apierrors.IsNotFound(err):
		r.add(Error, object, "see the log of the controller that is the leader; it needs the rights that the chart grants with meshConfig."+setting,
			"the controller has not published the roots, so pods with certificates of the kubelet do not start")
	case r.lost(object, err):
	default:
		r.ok("kubelets can request certificates")
	}
}

func bundles(f *Facts, r *report) {
	if r.lost("the namespaces", f.members.err) {
		return
	}
	const fix = "see the log of the controller that is the leader, which writes it"
	for _, name := range sorted(f.bundles) {
		object := "ConfigMap/" + name + "/outrigger-ca"
		bundle := f.bundles[name]
		if bundle.err != nil {
			r.add(Error, object, fix, "new pods cannot verify the controller: %v", bundle.err)
			continue
		}
		switch end, err := ends([]byte(bundle.value)); {
		case err != nil:
			r.add(Error, object, fix, "its ca.crt cannot be used: %v", err)
		case end.Before(f.now):
			r.add(Error, object, "replace the root: docs/identity.md, How to replace a root", "the last root expired at %s", end.UTC().Format(time.RFC3339))
		case end.Before(f.now.Add(soon)):
			r.add(Warning, object, "replace the root: docs/identity.md, How to replace a root", "the last root expires at %s", end.UTC().Format(time.RFC3339))
		}
	}
	if len(r.findings) == 0 {
		r.ok("%s %s the trust bundle", count(len(f.bundles), "namespace"), has(len(f.bundles)))
	}
}

func proxyCertificates(f *Facts, r *report) {
	if r.lost("the list of proxies", f.proxies.err) {
		return
	}
	var over []problem
	for _, p := range f.proxies.value {
		if !p.CertificateEnds.IsZero() && p.CertificateEnds.Before(f.now) {
			over = append(over, problem{"Pod/" + p.Name.String(), "its certificate expired at " + p.CertificateEnds.UTC().Format(time.RFC3339)})
		}
	}
	r.each(Error, over, func(string) string { return "the agent's log says why it was not renewed: outrigger proxy logs" })
	if len(over) == 0 {
		r.ok("%s %s a valid certificate", count(len(f.proxies.value), "proxy connection"), has(len(f.proxies.value)))
	}
}

// settle is the time that a pod or a proxy may take to connect or to acknowledge.
const settle = time.Minute

func connected(f *Facts, r *report) {
	if r.lost("the list of proxies and pods", cmp.Or(f.proxies.err, f.pods.err)) {
		return
	}
	there := make(map[string]bool)
	for _, p := range f.proxies.value {
		there[p.UID] = p.State != registry.Failing || !p.Connected.IsZero()
	}
	var away []problem
	classes := make(map[string]int)
	for i := range f.pods.value {
		pod := &f.pods.value[i]
		if !inject.Injected(pod) || f.now.Sub(pod.CreationTimestamp.Time) < settle {
			continue
		}
		if !there[string(pod.UID)] {
			away = append(away, problem{"Pod/" + pod.Namespace + "/" + pod.Name, "its sidecar is not connected to a controller"})
		}
	}
	for _, p := range f.proxies.value {
		classes[p.Class]++
	}
	r.each(Error, away, func(o string) string {
		return "the agent's log says what it waits for: outrigger proxy logs " + strings.TrimPrefix(o, "Pod/")
	})
	if len(away) == 0 {
		var by []string
		for _, class := range slices.Sorted(maps.Keys(classes)) {
			by = append(by, fmt.Sprintf("%d of class %s", classes[class], cmp.Or(class, "unknown")))
		}
		r.ok("all proxies are connected: %s", cmp.Or(strings.Join(by, ", "), "there are none"))
	}
}

func states(f *Facts, r *report) {
	if r.lost("the list of proxies", f.proxies.err) {
		return
	}
	var failing, refusing, behind []problem
	for i := range f.proxies.value {
		p := &f.proxies.value[i]
		name := "Pod/" + p.Name.String()
		switch {
		case p.Failure != nil:
			failing = append(failing, problem{name, p.Failure.Text()})
		case len(p.Rejections) > 0:
			refusing = append(refusing, problem{name, fmt.Sprintf("it rejects %s: %s", strings.Join(p.Rejections[0].Resources, ", "), p.Rejections[0].Message)})
		case p.State == registry.Waiting && f.now.Sub(p.Sent.Time) > settle || p.State == registry.Empty && f.now.Sub(p.Connected) > settle:
			behind = append(behind, problem{name, "it has not acknowledged its configuration since " + cmp.Or(p.Sent.Time, p.Connected).UTC().Format(time.RFC3339)})
		}
	}
	logs := func(o string) string { return "outrigger proxy logs --previous " + strings.TrimPrefix(o, "Pod/") }
	r.each(Error, failing, logs)
	r.each(Error, refusing, func(o string) string {
		return "see the conditions of the object that caused this part of the configuration: outrigger proxy get " + strings.TrimPrefix(o, "Pod/")
	})
	r.each(Warning, behind, logs)
	if len(r.findings) == 0 {
		r.ok("%s up to date", count(len(f.proxies.value), "proxy connection"))
	}
}

func sidecars(f *Facts, r *report) {
	if r.lost("the injector's configuration", cmp.Or(f.pods.err, f.decide.err)) {
		return
	}
	var without []problem
	injected := 0
	for i := range f.pods.value {
		pod := &f.pods.value[i]
		if inject.Injected(pod) {
			injected++
			continue
		}
		d := f.decide.value(pod).Decision
		if d.Outcome == inject.Skip {
			continue
		}
		without = append(without, problem{"Pod/" + pod.Namespace + "/" + pod.Name, fmt.Sprintf("it should have a sidecar and has none: %s: %s", d.Reason, d.Message)})
	}
	r.each(Error, without, func(string) string {
		return "recreate the pod, so that the injector adds the sidecar: kubectl rollout restart"
	})
	if len(without) == 0 {
		r.ok("%s %s a sidecar, and no other pod should have one", count(injected, "pod"), has(injected))
	}
}

// security asks the injector for a decision about a pod in each namespace with a Pod Security
// level. The decision contains a warning if the level would reject the sidecar.
func security(f *Facts, r *report) {
	if r.lost("the injector's configuration", cmp.Or(f.members.err, f.decide.err)) {
		return
	}
	for i := range f.members.value {
		ns := &f.members.value[i]
		if ns.Labels["pod-security.kubernetes.io/enforce"] == "" {
			continue
		}
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "check", Image: "outrigger.dev/check"}}}}
		pod.Namespace, pod.Name = ns.Name, "check"
		pod.Labels = map[string]string{metadata.Revision: f.options.Revision}
		pod.Annotations = map[string]string{metadata.Injection: "enabled"}
		for _, w := range f.decide.value(pod).Warnings {
			if w.Code == "pod_security" {
				r.add(Error, "Namespace/"+ns.Name, "kubectl label namespace "+ns.Name+" pod-security.kubernetes.io/enforce=privileged --overwrite", "%s", w.Message)
			}
		}
	}
	if len(r.findings) == 0 {
		r.ok("%s of the mesh %s its sidecars", count(len(f.members.value), "namespace"), map[bool]string{true: "admits", false: "admit"}[len(f.members.value) == 1])
	}
}
