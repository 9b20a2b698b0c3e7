package source

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

const (
	defaultClass       = "envoy"
	defaultLogLevel    = "error"
	defaultTrustDomain = "cluster.local"
	// defaultCertificateLife is the default lifetime of workloads' certificates.
	defaultCertificateLife = 24 * time.Hour
	// defaultNamespace is the control plane's namespace if unknown.
	defaultNamespace = "osm-system"
)

// ConfigOptions are the inputs of a Config besides the MeshConfig. All fields except
// CheckImage and LackedByImage are required.
type ConfigOptions struct {
	// Classes are the names of the registered drivers, in lower case.
	Classes []string
	// BuiltinImage returns the default image of a class's driver for an operating system,
	// "linux" or "windows", or "" if there is none.
	BuiltinImage func(class, os string) string
	// CheckImage returns an error if a class's driver does not support the image. Nil
	// disables the check.
	CheckImage func(class, image string) error
	// LackedByImage says what an image lacks of the features that the class's driver
	// declares. Nil disables the check.
	LackedByImage func(class, image string) []string
	// Env returns the value of an environment variable, or "".
	Env func(name string) string
	// InitImage is the default image of the init container.
	InitImage string
}

// Config is the mesh's configuration: a MeshConfig with defaults and legacy fields
// resolved. It is immutable and safe for concurrent use.
type Config struct {
	getters
	object      *v1alpha2.MeshConfig
	class       string
	classes     map[string]classConfig
	initImage   string
	logLevel    string
	ownLogLevel slog.Level
	resync      time.Duration
	connections int
	trustDomain string
	settings    *mesh.Settings
	problems    []mesh.Problem
	keyHosts    *KeyHosts

	certificateLife time.Duration
}

var _ driver.Configurator = (*Config)(nil)

// classConfig is the configuration of one class.
type classConfig struct {
	image, windowsImage, initImage string
	port                           uint32
	mtlsDisabled                   bool
}

// NewConfig reads a MeshConfig, which must not be changed afterwards; nil means all
// defaults. It always returns a Config: invalid values are its Problems, and are replaced
// by the defaults.
func NewConfig(obj *v1alpha2.MeshConfig, opts ConfigOptions) *Config {
	if obj == nil {
		obj = &v1alpha2.MeshConfig{}
	}
	r := &reader{spec: &obj.Spec, opts: opts, notes: notes{object: mesh.ObjectRef{
		APIVersion: v1alpha2.SchemeGroupVersion.String(),
		Kind:       kindMeshConfig,
		Namespace:  obj.Namespace,
		Name:       obj.Name,
	}}}
	c := &Config{
		object:      obj,
		class:       cmp.Or(strings.ToLower(obj.Spec.Sidecar.SidecarClass), defaultClass),
		initImage:   opts.InitImage,
		logLevel:    r.sidecarLogLevel(),
		ownLogLevel: r.ownLogLevel(),
		resync:      r.duration("spec.sidecar.configResyncInterval", obj.Spec.Sidecar.ConfigResyncInterval),
		connections: r.connections(),
		trustDomain: r.trustDomain(),

		certificateLife: cmp.Or(r.duration("spec.certificate.serviceCertValidityDuration", obj.Spec.Certificate.ServiceCertValidityDuration), defaultCertificateLife),
	}
	c.getters = func() *Config { return c }
	c.classes = r.classes(c.class)
	c.settings = mesh.Seal(r.settings(c, obj.Namespace))
	c.keyHosts = r.keyHosts()
	r.checkTraffic()
	r.checkResources()
	r.checkDurations()
	r.checkInert()
	c.problems = r.sorted()
	return c
}

// getters are the methods of a driver.Configurator, of a Config or of the current one of a
// Live.
type getters func() *Config

// GetMeshConfig returns the object that the Config was made from, or an empty one. The
// caller must not change it.
func (g getters) GetMeshConfig() *v1alpha2.MeshConfig { return g().object }

// GetSidecarClass returns the default class, in lower case. If no driver has that name,
// there is a Problem.
func (g getters) GetSidecarClass() string { return g().class }

// GetSidecarImage returns the proxy's image on Linux for a class, or "" if unknown.
func (g getters) GetSidecarImage(class string) string { return g().classConfig(class).image }

// GetSidecarWindowsImage returns the proxy's image on Windows for a class, or "" if
// unknown.
func (g getters) GetSidecarWindowsImage(class string) string {
	return g().classConfig(class).windowsImage
}

// GetInitContainerImage returns the init container's image for a class.
func (g getters) GetInitContainerImage(class string) string { return g().classConfig(class).initImage }

// GetProxyServerPort returns the port that serves the class's proxies, or 0 if the
// MeshConfig does not set it.
func (g getters) GetProxyServerPort(class string) uint32 { return g().classConfig(class).port }

// IsMTLSDisabled reports whether the pods of a class use plaintext.
func (g getters) IsMTLSDisabled(class string) bool { return g().classConfig(class).mtlsDisabled }

// MTLSDisabledClasses returns the classes whose pods use plaintext, in lower case and
// sorted.
func (c *Config) MTLSDisabledClasses() []string {
	var names []string
	for name, class := range c.classes {
		if class.mtlsDisabled {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// IsPrivilegedInitContainer reports whether init containers are privileged.
func (g getters) IsPrivilegedInitContainer() bool {
	return g().object.Spec.Sidecar.EnablePrivilegedInitContainer
}

// GetSidecarLogLevel returns one of trace, debug, info, warning, error, critical and off.
// The default is error.
func (g getters) GetSidecarLogLevel() string { return g().logLevel }

// LogLevel returns the control plane's own log level. The default is info.
func (c *Config) LogLevel() slog.Level { return c.ownLogLevel }

// GetMaxDataPlaneConnections returns the maximum number of proxies connected to one
// controller. 0, the default, means no limit.
func (g getters) GetMaxDataPlaneConnections() int { return g().connections }

// GetConfigResyncInterval returns the interval at which every proxy is sent its complete
// state again. 0, the default, means never.
func (g getters) GetConfigResyncInterval() time.Duration { return g().resync }

// GetServiceCertValidityPeriod returns the lifetime of a workload's certificate, 24 hours
// by default.
func (g getters) GetServiceCertValidityPeriod() time.Duration { return g().certificateLife }

// IsDebugServerEnabled reports whether the controller serves its debug pages.
func (g getters) IsDebugServerEnabled() bool { return g().object.Spec.Observability.EnableDebugServer }

// GetTrustDomain returns the trust domain of the mesh's identities, cluster.local by
// default.
func (g getters) GetTrustDomain() string { return g().trustDomain }

// Settings returns the MeshConfig's part of the mesh model, sealed. Invalid values are
// replaced by values that allow no more.
func (c *Config) Settings() *mesh.Settings { return c.settings }

// KeyHosts returns the hosts that the keys of tokens may be fetched from.
func (c *Config) KeyHosts() *KeyHosts { return c.keyHosts }

// Problems returns the Problems of the MeshConfig, sorted by field.
func (c *Config) Problems() []mesh.Problem { return slices.Clone(c.problems) }

func (c *Config) classConfig(class string) classConfig {
	if found, ok := c.classes[strings.ToLower(class)]; ok {
		return found
	}
	return classConfig{initImage: c.initImage}
}
