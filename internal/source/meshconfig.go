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
	// defaultCertificateLife is how long workloads' certificates are valid.
	defaultCertificateLife = 24 * time.Hour
	// defaultNamespace is where a control plane is of which nothing else is known.
	defaultNamespace = "osm-system"
)

// ConfigOptions are what a Config needs to know besides the MeshConfig. All of
// them but CheckImage are required.
type ConfigOptions struct {
	// Classes are the names of the registered drivers, in lower case.
	Classes []string
	// BuiltinImage returns the image that the driver of a class has built in for
	// an operating system, "linux" or "windows", or "" if it has none.
	BuiltinImage func(class, os string) string
	// CheckImage returns what the driver of a class has against an image, or nil. Nil
	// means that no image is checked.
	CheckImage func(class, image string) error
	// Env returns the value of an environment variable, or "".
	Env func(name string) string
	// InitImage is the init container's image where nothing else names one.
	InitImage string
}

// Config is the mesh's configuration: a MeshConfig with its defaults and its
// older field names resolved. It is immutable and safe for use by many
// goroutines.
type Config struct {
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

	certificateLife time.Duration
}

var _ driver.Configurator = (*Config)(nil)

// classConfig is what the configuration says of one class.
type classConfig struct {
	image, windowsImage, initImage string
	port                           uint32
	mtlsDisabled                   bool
}

// NewConfig reads a MeshConfig, which must not be changed afterwards. A nil one
// means that all is at its default. There is always a Config: what is wrong in
// the object is in the Problems, sorted by field, and the Config has the default
// in its place.
func NewConfig(obj *v1alpha2.MeshConfig, opts ConfigOptions) (*Config, []mesh.Problem) {
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
	c.classes = r.classes(c.class)
	c.settings = mesh.Seal(r.settings(c, obj.Namespace))
	r.checkTraffic()
	r.checkResources()
	r.checkDurations()
	r.checkInert()
	return c, r.sorted()
}

// GetMeshConfig returns the object that the Config was made from, or an empty one
// if there was none. The caller must not change it.
func (c *Config) GetMeshConfig() *v1alpha2.MeshConfig { return c.object }

// GetSidecarClass returns the default class, in lower case. It may be one that no
// driver bears; then there is a Problem that says so.
func (c *Config) GetSidecarClass() string { return c.class }

// GetSidecarImage returns the proxy's image on Linux for a class, or "" where
// none is known.
func (c *Config) GetSidecarImage(class string) string { return c.classConfig(class).image }

// GetSidecarWindowsImage returns the proxy's image on Windows for a class, or ""
// where none is known.
func (c *Config) GetSidecarWindowsImage(class string) string {
	return c.classConfig(class).windowsImage
}

// GetInitContainerImage returns the init container's image for a class.
func (c *Config) GetInitContainerImage(class string) string { return c.classConfig(class).initImage }

// GetProxyServerPort returns the port that serves the class's proxies, or 0 where
// the MeshConfig does not say.
func (c *Config) GetProxyServerPort(class string) uint32 { return c.classConfig(class).port }

// IsMTLSDisabled reports whether the pods of a class speak plaintext.
func (c *Config) IsMTLSDisabled(class string) bool { return c.classConfig(class).mtlsDisabled }

// MTLSDisabledClasses returns the classes whose pods speak plaintext, in lower
// case and sorted.
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
func (c *Config) IsPrivilegedInitContainer() bool {
	return c.object.Spec.Sidecar.EnablePrivilegedInitContainer
}

// GetSidecarLogLevel returns one of trace, debug, info, warning, error, critical
// and off; error is the default.
func (c *Config) GetSidecarLogLevel() string { return c.logLevel }

// LogLevel returns how much the control plane itself logs; info is the default.
func (c *Config) LogLevel() slog.Level { return c.ownLogLevel }

// GetMaxDataPlaneConnections returns how many proxies may be connected to one
// controller; 0 means any number and is the default.
func (c *Config) GetMaxDataPlaneConnections() int { return c.connections }

// GetConfigResyncInterval returns the period after which every proxy is sent its
// whole state again; 0 means never and is the default.
func (c *Config) GetConfigResyncInterval() time.Duration { return c.resync }

// GetServiceCertValidityPeriod returns how long a workload's certificate is valid, 24
// hours by default.
func (c *Config) GetServiceCertValidityPeriod() time.Duration { return c.certificateLife }

// IsDebugServerEnabled reports whether the controller serves its debug pages.
func (c *Config) IsDebugServerEnabled() bool { return c.object.Spec.Observability.EnableDebugServer }

// GetTrustDomain returns the trust domain of the mesh's identities; cluster.local
// is the default.
func (c *Config) GetTrustDomain() string { return c.trustDomain }

// Settings returns what the MeshConfig says to the mesh model, sealed. In the place of
// a value that is wrong stands one that lets no more through.
func (c *Config) Settings() *mesh.Settings { return c.settings }

func (c *Config) classConfig(class string) classConfig {
	if found, ok := c.classes[strings.ToLower(class)]; ok {
		return found
	}
	return classConfig{initImage: c.initImage}
}
