package inject

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/certificate"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// denial is an error with the reason code of a denied pod.
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

// invalid is the denial for a value of the user's that cannot be used.
func invalid(err error) error { return deny("invalid_annotation", err) }

// plan is everything that is known about one injection before a driver is
// called.
type plan struct {
	names    []string
	hasMesh  bool
	context  *driver.InjectorContext
	warnings []Warning
}

// prepare reads what mesh, namespace and pod say about the sidecar. The pod is
// not changed. The handle is the ProxyUUID that an earlier injection gave, or
// empty.
func (i *Injector) prepare(ctx context.Context, req *Request, c *candidate, handle string) (*plan, error) {
	configurator := i.opts.Configurator()
	p := &plan{context: &driver.InjectorContext{
		Context:             ctx,
		Pod:                 c.pod,
		MeshName:            i.opts.MeshName,
		OsmNamespace:        i.opts.MeshNamespace,
		PodNamespace:        req.Namespace,
		PodOS:               podOS(c.pod),
		Configurator:        configurator,
		KubeClient:          i.opts.KubeClient,
		ContainerPullPolicy: corev1.PullIfNotPresent,
		DryRun:              req.DryRun,
		Templates:           c.config.templates,
	}}
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
	return p, i.native(ctx, c, p)
}

// choose finds the templates of the pod, and the driver if one is among them.
func (p *plan) choose(c *candidate, defaultClass string) (string, error) {
	class, classFrom := defaultClass, found{where: "the mesh's sidecarClass"}
	if f := lookup(c.pod, c.namespace, classAnnotation); f.ok {
		class, classFrom = strings.ToLower(f.value), f
	}
	p.names = c.config.defaultNames
	namesFrom := found{where: "the injection config"}
	if f := lookup(c.pod, c.namespace, templatesAnnotation); f.ok {
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
			return "", deny("unknown_class", fmt.Errorf("%s: %w", classFrom.where, err))
		case !c.config.templates.Has(name):
			return "", invalid(namesFrom.errorf("there is no template %q; there are: %s", name, strings.Join(c.config.templates.Names(), ", ")))
		}
		p.names[n] = name
	}
	return p.context.Sidecar.Class, nil
}

// identify says who the pod will be.
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
	// A second call for the same pod has another UID; the handle stays.
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

// sidecar reads how the sidecar is to be.
func (p *plan) sidecar(c *candidate, class string, configurator driver.Configurator) error {
	inj, spec := p.context, configurator.GetMeshConfig().Spec.Sidecar
	s := &inj.Sidecar
	s.LogLevel = configurator.GetSidecarLogLevel()
	s.PrivilegedInit = configurator.IsPrivilegedInitContainer()
	s.InitImage = configurator.GetInitContainerImage(class)
	s.DisabledMTLS = configurator.IsMTLSDisabled(class)
	if inj.PodOS == "windows" {
		s.Image = configurator.GetSidecarWindowsImage(class)
	} else {
		s.Image = configurator.GetSidecarImage(class)
	}
	var err error
	if f := lookup(c.pod, c.namespace, imageAnnotation); f.ok {
		if s.Image, err = f.image(); err != nil {
			return invalid(err)
		}
	}
	if s.Image == "" {
		return deny("image_missing", fmt.Errorf("no %s image is known for class %s; set it in the MeshConfig's spec.sidecar.sidecarDrivers or by the annotation %s",
			inj.PodOS, class, imageAnnotation))
	}
	if f := lookup(c.pod, c.namespace, logLevelAnnotation); f.ok {
		level, ok := logLevels[strings.ToLower(f.value)]
		if !ok {
			return invalid(f.errorf("%q is not a log level; levels are %s", f.value, strings.Join(slices.Sorted(maps.Keys(logLevels)), ", ")))
		}
		s.LogLevel = level
	}
	if s.Resources, err = resources(spec.Resources, c.pod, c.namespace); err != nil {
		return invalid(err)
	}
	if s.DisabledMTLS {
		p.warnings = append(p.warnings, Warning{"mtls_disabled",
			"mesh TLS is off for class " + class + " (sidecarDisabledMTLS): this pod's traffic is plaintext"})
	}
	return nil
}

// native decides between a native sidecar and an ordinary container.
func (i *Injector) native(ctx context.Context, c *candidate, p *plan) error {
	s := &p.context.Sidecar
	s.HoldApplication = c.config.settings.HoldApplicationUntilReady == nil || *c.config.settings.HoldApplicationUntilReady
	var err error
	if f := lookup(c.pod, c.namespace, holdAnnotation); f.ok {
		if s.HoldApplication, err = f.bool(); err != nil {
			return invalid(err)
		}
	}
	f := lookup(c.pod, c.namespace, nativeAnnotation)
	switch setting := c.config.settings.NativeSidecars; {
	case f.ok:
		if s.Native, err = f.bool(); err != nil {
			return invalid(err)
		}
	case setting == "true" || setting == "false":
		s.Native = setting == "true"
	default:
		if s.Native, err = i.opts.NativeSidecars(ctx); err != nil {
			return deny("server_version", fmt.Errorf("asking the API server whether it has native sidecars: %w", err))
		}
	}
	return nil
}

// redirection joins the mesh's and the pod's lists of what is not redirected.
func (p *plan) redirection(c *candidate, traffic *v1alpha2.TrafficSpec) error {
	var r agentspec.Redirection
	for _, port := range traffic.InboundPortExclusionList {
		r.ExcludeInboundPorts = append(r.ExcludeInboundPorts, int(port))
	}
	for _, port := range traffic.OutboundPortExclusionList {
		r.ExcludeOutboundPorts = append(r.ExcludeOutboundPorts, int(port))
	}
	r.ExcludeOutboundRanges = slices.Clone(traffic.OutboundIPRangeExclusionList)
	r.IncludeOutboundRanges = slices.Clone(traffic.OutboundIPRangeInclusionList)
	r.ExcludeInterfaces = slices.Clone(traffic.NetworkInterfaceExclusionList)
	if strings.EqualFold(string(traffic.InterceptionMode), "none") {
		r.DisableInbound, r.DisableOutbound = true, true
	}

	for _, list := range []struct {
		key  string
		into *[]int
	}{{inboundExclusion, &r.ExcludeInboundPorts}, {outboundExclusion, &r.ExcludeOutboundPorts}} {
		if f := lookup(c.pod, &Namespace{}, list.key); f.ok && strings.TrimSpace(f.value) != "" {
			ports, err := parsePorts(f.value)
			if err != nil {
				return invalid(f.errorf("%v", err))
			}
			*list.into = append(*list.into, ports...)
		}
	}
	for _, list := range []struct {
		key  string
		into *[]string
	}{{rangeExclusion, &r.ExcludeOutboundRanges}, {rangeInclusion, &r.IncludeOutboundRanges}} {
		if f := lookup(c.pod, &Namespace{}, list.key); f.ok && strings.TrimSpace(f.value) != "" {
			ranges, err := parseRanges(f.value)
			if err != nil {
				return invalid(f.errorf("%v", err))
			}
			*list.into = append(*list.into, ranges...)
		}
	}
	if c.config.settings.Compat.Istio {
		if err := istioRedirection(c.pod, &r); err != nil {
			return invalid(err)
		}
	}
	for _, ports := range []*[]int{&r.ExcludeInboundPorts, &r.ExcludeOutboundPorts, &r.IncludeInboundPorts, &r.IncludeOutboundPorts} {
		*ports = sortedSet(*ports)
	}
	for _, names := range []*[]string{&r.ExcludeOutboundRanges, &r.IncludeOutboundRanges, &r.ExcludeInterfaces} {
		*names = sortedSet(*names)
	}
	inj := p.context
	inj.Redirection = r
	inj.InboundPortExclusionList, inj.OutboundPortExclusionList = r.ExcludeInboundPorts, r.ExcludeOutboundPorts
	inj.OutboundIPRangeExclusionList, inj.OutboundIPRangeInclusionList = r.ExcludeOutboundRanges, r.IncludeOutboundRanges
	return nil
}

// podOS returns the operating system that the pod is for.
func podOS(pod *corev1.Pod) string {
	if pod.Spec.OS != nil && pod.Spec.OS.Name != "" {
		return strings.ToLower(string(pod.Spec.OS.Name))
	}
	if os := pod.Spec.NodeSelector[corev1.LabelOSStable]; os != "" {
		return strings.ToLower(os)
	}
	return "linux"
}
