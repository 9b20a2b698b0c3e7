package inject

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/certificate"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// denial is the error that denies a pod, with its reason code.
type denial struct {
	reason Reason
	err    error
}

func (d denial) Error() string { return d.err.Error() }
func (d denial) Unwrap() error { return d.err }

func deny(reason Reason, err error) error {
	if err == nil {
		return nil
	}
	return denial{reason, err}
}

// invalid is the denial for an annotation value that cannot be used.
func invalid(err error) error { return deny("invalid_annotation", err) }

// plan is the input of one injection, collected before the driver is called.
type plan struct {
	names    []string
	hasMesh  bool
	context  *driver.InjectorContext
	warnings []Warning
}

// prepare reads the sidecar's settings from mesh, namespace and pod. It does not
// change the pod. The handle is the ProxyUUID of an earlier injection, or empty.
func (i *Injector) prepare(ctx context.Context, req *Request, c *candidate, handle string) (*plan, error) {
	configurator := i.opts.Configurator()
	p := &plan{context: &driver.InjectorContext{
		Context:             ctx,
		Pod:                 c.pod,
		MeshName:            i.opts.MeshName,
		OsmNamespace:        i.opts.MeshNamespace,
		PodNamespace:        req.Namespace,
		OwnerKind:           req.OwnerKind,
		OwnerName:           req.OwnerName,
		PodOS:               podOS(c.pod),
		Configurator:        configurator,
		KubeClient:          i.opts.KubeClient,
		ContainerPullPolicy: corev1.PullIfNotPresent,
		DryRun:              req.DryRun,
		Templates:           c.config.templates,
	}}
	p.context.Warn = func(message string) { p.warnings = append(p.warnings, Warning{"driver_warning", message}) }
	if c.config.settings.Compat.Istio {
		var err error
		if c.istio, err = readIstio(c.pod); err != nil {
			return nil, invalid(err)
		}
		p.warnings = append(p.warnings, c.istio.warnings...)
	}
	if policy := c.config.settings.ImagePullPolicy; policy != "" {
		p.context.ContainerPullPolicy = corev1.PullPolicy(policy)
	}
	class, err := p.choose(c, configurator.GetSidecarClass())
	if err != nil {
		return nil, err
	}
	if err := p.identify(i, req, c, handle, configurator); err != nil {
		return nil, err
	}
	if !p.hasMesh {
		p.context.Sidecar.LogLevel = configurator.GetSidecarLogLevel()
		return p, i.native(ctx, c, p)
	}
	if err := p.sidecar(c, class, configurator); err != nil {
		return nil, err
	}
	if err := p.redirection(c, &configurator.GetMeshConfig().Spec.Traffic); err != nil {
		return nil, err
	}
	i.podCertificate(ctx, p, configurator)
	return p, i.native(ctx, c, p)
}

// choose resolves the names of the pod's templates and returns the driver's class, or
// "" if none of them is a driver.
func (p *plan) choose(c *candidate, defaultClass string) (string, error) {
	class, classFrom := defaultClass, found{from: origin{what: "the mesh's sidecarClass"}}
	if f := c.lookup(metadata.Class); f.ok {
		class, classFrom = strings.ToLower(f.value), f
	}
	p.names = c.config.defaultNames
	namesFrom := found{from: origin{what: "the injection config"}}
	if f := c.lookup(metadata.Templates); f.ok {
		names, err := split(f.value)
		if err != nil {
			return "", invalid(f.errorf("%v", err))
		}
		p.names, namesFrom = names, f
	}
	p.names = slices.Clone(p.names)
	for n, name := range p.names {
		byClass := name == sidecarTemplate
		if byClass {
			name = class
		}
		_, err := sidecar.Lookup(name)
		if err == nil {
			name = strings.ToLower(name)
		}
		switch {
		case slices.Contains(p.names[:n], name):
			return "", invalid(namesFrom.errorf("%s is named twice", name))
		case err == nil && p.hasMesh:
			return "", invalid(namesFrom.errorf("%s and %s are both drivers; a pod has one", p.context.Sidecar.Class, name))
		case err == nil:
			p.hasMesh, p.context.Sidecar.Class = true, name
		case byClass:
			return "", deny("unknown_class", fmt.Errorf("%s: %w", classFrom.from, err))
		case !c.config.templates.Has(name):
			return "", invalid(namesFrom.errorf("there is no template %q; there are: %s", name, strings.Join(c.config.templates.Names(), ", ")))
		}
		p.names[n] = name
	}
	return p.context.Sidecar.Class, nil
}

// identify sets the pod's identity, ProxyUUID and bootstrap certificate.
func (p *plan) identify(i *Injector, req *Request, c *candidate, handle string, configurator driver.Configurator) error {
	inj := p.context
	account := c.pod.Spec.ServiceAccountName
	if account == "" {
		account = defaultServiceAccount
	}
	inj.Identity = mesh.Identity{TrustDomain: configurator.GetTrustDomain(), Namespace: req.Namespace, ServiceAccount: account}
	if req.UID != "" {
		id, err := uuid.Parse(req.UID)
		if err != nil {
			return deny("review_invalid", fmt.Errorf("the review's uid %q is not a UUID", req.UID))
		}
		inj.ProxyUUID = id
	}
	// A second call for the same pod has another UID but keeps its handle.
	if id, err := uuid.Parse(handle); err == nil {
		inj.ProxyUUID = id
	}
	inj.ProxyCommonName = certificate.CommonName(inj.ProxyUUID.String() + ".sidecar." + account + "." + req.Namespace)
	inj.BootstrapCertificate = &certificate.Certificate{
		CommonName: certificate.CommonName(inj.Identity.CommonName()),
		URI:        inj.Identity.String(),
		DNSNames:   []string{inj.Identity.DNSName()},
	}
	if i.opts.TrustBundle != nil {
		inj.BootstrapCertificate.TrustBundle = i.opts.TrustBundle()
	}
	return nil
}

// sidecar reads the sidecar's image, resources and other settings.
func (p *plan) sidecar(c *candidate, class string, configurator driver.Configurator) error {
	inj, spec := p.context, configurator.GetMeshConfig().Spec.Sidecar
	s := &inj.Sidecar
	s.LogLevel = configurator.GetSidecarLogLevel()
	s.PrivilegedInit = configurator.IsPrivilegedInitContainer()
	s.CNI = c.config.settings.CNI && inj.PodOS != "windows"
	s.InitImage = cmp.Or(configurator.GetInitContainerImage(class), c.config.settings.InitContainerImage, c.opts.InitImage)
	s.DisabledMTLS = configurator.IsMTLSDisabled(class)
	if inj.PodOS == "windows" {
		s.Image = configurator.GetSidecarWindowsImage(class)
	} else {
		s.Image = configurator.GetSidecarImage(class)
	}
	var err error
	if f := c.lookup(metadata.Image); f.ok {
		if s.Image, err = f.image(); err != nil {
			return invalid(err)
		}
	}
	if s.Image == "" && sidecar.IsProxyless(class) && inj.PodOS != "windows" {
		s.Image = s.InitImage
	}
	if s.Image == "" {
		return deny("image_missing", fmt.Errorf("no %s image is known for class %s; set it in the MeshConfig's spec.sidecar.sidecarDrivers or by the annotation %s",
			inj.PodOS, class, metadata.Image))
	}
	if err := sidecar.CheckImage(class, s.Image); err != nil {
		p.warnings = append(p.warnings, Warning{"image_not_supported", err.Error()})
	}
	for _, lacked := range sidecar.LackedByImage(class, s.Image) {
		p.warnings = append(p.warnings, Warning{"image_lacks_feature", lacked})
	}
	if f := c.lookup(metadata.LogLevel); f.ok {
		level, ok := logLevels[strings.ToLower(f.value)]
		if !ok {
			return invalid(f.errorf("%q is not a log level; levels are %s", f.value, strings.Join(slices.Sorted(maps.Keys(logLevels)), ", ")))
		}
		s.LogLevel = level
	}
	s.Concurrency = spec.Concurrency
	if f := c.lookup(metadata.Concurrency); f.ok {
		if s.Concurrency, err = f.concurrency(); err != nil {
			return invalid(err)
		}
	}
	if s.Resources, err = c.resources(spec.Resources); err != nil {
		return invalid(err)
	}
	if err := p.ending(c, &spec); err != nil {
		return invalid(err)
	}
	if s.DisabledMTLS {
		p.warnings = append(p.warnings, Warning{"mtls_disabled",
			"mesh TLS is off for class " + class + " (sidecarDisabledMTLS): this pod's traffic is plaintext"})
	}
	return nil
}

// defaultGrace is Kubernetes' default for terminationGracePeriodSeconds.
const defaultGrace = 30

// ending reads the sidecar's preStop wait and drain time.
func (p *plan) ending(c *candidate, spec *v1alpha2.SidecarSpec) error {
	s := &p.context.Sidecar
	drain, err := c.seconds(metadata.DrainSeconds, spec.DrainSeconds)
	if err != nil {
		return err
	}
	wait, err := c.seconds(metadata.PreStopSeconds, spec.PreStopSeconds)
	if err != nil {
		return err
	}
	s.DrainSeconds = drain
	if wait != nil {
		s.PreStopSeconds = *wait
	}
	grace := int64(defaultGrace)
	if g := c.pod.Spec.TerminationGracePeriodSeconds; g != nil {
		grace = *g
	}
	takes := int64(s.PreStopSeconds)
	if drain != nil {
		takes += int64(*drain)
	}
	if takes > grace {
		p.warnings = append(p.warnings, Warning{"grace_period_short", fmt.Sprintf(
			"the sidecar's wait of %d s and drain of %d s take longer than the pod's terminationGracePeriodSeconds, %d, after which it is killed",
			s.PreStopSeconds, takes-int64(s.PreStopSeconds), grace)})
	}
	// The API server rejects a hook that takes longer.
	s.PreStopSeconds = int32(max(0, min(int64(s.PreStopSeconds), grace)))
	return nil
}

// native decides between a native sidecar and an ordinary container.
func (i *Injector) native(ctx context.Context, c *candidate, p *plan) error {
	s := &p.context.Sidecar
	if isStandalone(c.pod) {
		return nil // There is no application to start before or after.
	}
	s.HoldApplication = c.config.settings.HoldApplicationUntilReady == nil || *c.config.settings.HoldApplicationUntilReady
	var err error
	if f := c.lookup(metadata.HoldApplication); f.ok {
		if s.HoldApplication, err = f.bool(); err != nil {
			return invalid(err)
		}
	}
	f := c.lookup(metadata.NativeSidecar)
	switch setting := c.config.settings.NativeSidecars; {
	case f.ok:
		if s.Native, err = f.bool(); err != nil {
			return invalid(err)
		}
	case setting == "true" || setting == "false":
		s.Native = setting == "true"
	case hasNative(c.pod):
		// A cluster without native sidecars would have removed the field.
		s.Native = true
	default:
		if s.Native, err = i.opts.NativeSidecars(ctx); err != nil {
			return deny("server_version", fmt.Errorf("asking the API server whether it has native sidecars: %w", err))
		}
	}
	return nil
}

// isStandalone reports whether the pod has no container but the proxy's, as the pods of gateways. The
// proxy is then an ordinary container, and nothing is redirected. A native sidecar of the user's may be
// an application.
func isStandalone(pod *corev1.Pod) bool {
	return len(pod.Spec.Containers) == 1 && pod.Spec.Containers[0].Name == driver.ProxyContainer && !hasNative(pod)
}

// hasNative reports whether the pod has a native sidecar of its own.
func hasNative(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return isNative(&c) && !isOurs(c.Name) })
}

// podOS returns the pod's operating system; "linux" if it names none.
func podOS(pod *corev1.Pod) string {
	if pod.Spec.OS != nil && pod.Spec.OS.Name != "" {
		return strings.ToLower(string(pod.Spec.OS.Name))
	}
	for _, label := range osLabels {
		if os := pod.Spec.NodeSelector[label]; os != "" {
			return strings.ToLower(os)
		}
	}
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
		return "linux"
	}
	required := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil || len(required.NodeSelectorTerms) == 0 ||
		slices.ContainsFunc(required.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool { return !needsWindows(&t) }) {
		return "linux"
	}
	return "windows"
}

// osLabels are the labels of nodes with their operating system, the older name last.
var osLabels = []string{corev1.LabelOSStable, "beta.kubernetes.io/os"}

// needsWindows reports whether only Windows nodes match the term.
func needsWindows(term *corev1.NodeSelectorTerm) bool {
	return slices.ContainsFunc(term.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
		switch {
		case !slices.Contains(osLabels, r.Key):
			return false
		case r.Operator == corev1.NodeSelectorOpIn:
			return len(r.Values) == 1 && r.Values[0] == "windows"
		}
		return r.Operator == corev1.NodeSelectorOpNotIn && slices.Contains(r.Values, "linux")
	})
}
