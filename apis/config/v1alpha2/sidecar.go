package v1alpha2

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
)

// SidecarSpec configures the sidecars.
type SidecarSpec struct {
	// EnablePrivilegedInitContainer makes the init container privileged. Otherwise it has
	// only the capability NET_ADMIN.
	// +optional
	EnablePrivilegedInitContainer bool `json:"enablePrivilegedInitContainer,omitempty"`

	// LogLevel is the proxies' log level. Running sidecars keep theirs.
	// +optional
	// +kubebuilder:validation:Enum=trace;debug;info;warning;warn;error;critical;off
	LogLevel string `json:"logLevel,omitempty"`

	// SidecarClass is the name of the driver for pods that do not choose one by
	// annotation. Case is ignored. Empty means envoy.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	SidecarClass string `json:"sidecarClass,omitempty"`

	// SidecarImage is the proxy's image on Linux for the default class.
	// +optional
	SidecarImage string `json:"sidecarImage,omitempty"`

	// SidecarWindowsImage is the proxy's image on Windows for the default class.
	// +optional
	SidecarWindowsImage string `json:"sidecarWindowsImage,omitempty"`

	// ProposalWindowsImage is SidecarWindowsImage under its key in the sidecar-driver
	// proposal.
	// +optional
	ProposalWindowsImage string `json:"SidecarImageWindowsImage,omitempty"`

	// EdgeWindowsImage is SidecarWindowsImage under its key in osm-edge.
	// +optional
	EdgeWindowsImage string `json:"sidecarImageWindowsImage,omitempty"`

	// EdgeV1alpha1WindowsImage is SidecarWindowsImage under its key in osm-edge's
	// v1alpha1.
	// +optional
	EdgeV1alpha1WindowsImage string `json:"sideWindowsImage,omitempty"`

	// EnvoyImage is Open Service Mesh's name for the image on Linux, from when Envoy was
	// its only proxy.
	// +optional
	EnvoyImage string `json:"envoyImage,omitempty"`

	// EnvoyWindowsImage is Open Service Mesh's name for the image on Windows.
	// +optional
	EnvoyWindowsImage string `json:"envoyWindowsImage,omitempty"`

	// InitContainerImage is the init container's image for the default class.
	// +optional
	InitContainerImage string `json:"initContainerImage,omitempty"`

	// SidecarDrivers configures individual drivers. A driver without an entry uses its
	// defaults.
	// +optional
	// +listType=map
	// +listMapKey=sidecarName
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, b.sidecarName.lowerAscii() == a.sidecarName.lowerAscii()))",message="each sidecarName may be used once, whatever its case; merge the entries of one driver into one"
	SidecarDrivers []SidecarDriverSpec `json:"sidecarDrivers,omitempty"`

	// MaxDataPlaneConnections limits the proxies connected to one controller; 0 means no
	// limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxDataPlaneConnections int32 `json:"maxDataPlaneConnections,omitempty"`

	// ConfigResyncInterval is the interval at which a proxy is sent its complete
	// configuration again; empty or 0s means never.
	// +optional
	ConfigResyncInterval Duration `json:"configResyncInterval,omitempty"`

	// DrainSeconds is how long connections may take to finish when a pod is stopped. The
	// default is the driver's, 5 for Outrigger's own drivers. Added by Outrigger.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	DrainSeconds *int32 `json:"drainSeconds,omitempty"`

	// PreStopSeconds is how long a sidecar keeps working normally when its pod is stopped,
	// while others learn that the pod terminates. Defaults to 0. Added by Outrigger.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	PreStopSeconds *int32 `json:"preStopSeconds,omitempty"`

	// Concurrency is the number of a proxy's worker threads, for pods that do not set it
	// by annotation. 0 means the CPU limit of the sidecar container, rounded up, or two
	// without a limit. Running sidecars keep theirs.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	Concurrency int32 `json:"concurrency,omitempty"`

	// SidecarTimeout is a proxy's timeout for connecting, reading, writing and idle
	// connections, in seconds; 0 means 60 (osm-edge).
	// +optional
	// +kubebuilder:validation:Minimum=0
	SidecarTimeout int32 `json:"sidecarTimeout,omitempty"`

	// Resources are the compute resources of the sidecar container.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitzero"`

	// TLSMinProtocolVersion is the oldest TLS version between sidecars. Empty means
	// TLSv1_3, unlike Open Service Mesh, whose default is TLSv1_2.
	// +optional
	TLSMinProtocolVersion TLSVersion `json:"tlsMinProtocolVersion,omitempty"`

	// TLSMaxProtocolVersion is the newest TLS version between sidecars. Empty
	// means TLSv1_3.
	// +optional
	TLSMaxProtocolVersion TLSVersion `json:"tlsMaxProtocolVersion,omitempty"`

	// CipherSuites are the OpenSSL names of ciphers for TLS 1.2 and older. Empty means the
	// proxy's default.
	// +optional
	CipherSuites []string `json:"cipherSuites,omitempty"`

	// ECDHCurves are the key exchanges that TLS between sidecars may use, the preferred one
	// first: X25519MLKEM768, X25519, P-256, P-384 and P-521. Empty means X25519MLKEM768
	// where both sidecars have it, and X25519 otherwise. A proxy that does not have
	// X25519MLKEM768 uses the others, and refuses its configuration if there are none.
	// +optional
	ECDHCurves []string `json:"ecdhCurves,omitempty"`

	// LocalProxyMode was the address at which a sidecar of Open Service Mesh reached its
	// application. Outrigger's sidecars always use the pod's address, so ports that listen
	// only on loopback stay closed.
	// +optional
	// +kubebuilder:default=Localhost
	LocalProxyMode LocalProxyMode `json:"localProxyMode,omitempty"`

	// LocalDNSProxy makes the sidecar answer the pod's DNS queries (osm-edge).
	// +optional
	LocalDNSProxy LocalDNSProxy `json:"localDNSProxy,omitzero"`
}

// WindowsImage returns the image on Windows for the default class, from the first of its
// keys that is set. EnvoyWindowsImage is not among them, since it is always for Envoy.
func (s *SidecarSpec) WindowsImage() string {
	return cmp.Or(s.SidecarWindowsImage, s.ProposalWindowsImage, s.EdgeWindowsImage, s.EdgeV1alpha1WindowsImage)
}

// SidecarDriverSpec configures one driver. Its images are for the pods of its class;
// empty means the driver's default.
type SidecarDriverSpec struct {
	// SidecarName is the name under which the driver is registered. Case is ignored.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	SidecarName string `json:"sidecarName"`

	// SidecarImage is the proxy's image on Linux.
	// +optional
	SidecarImage string `json:"sidecarImage,omitempty"`

	// SidecarWindowsImage is the proxy's image on Windows.
	// +optional
	SidecarWindowsImage string `json:"sidecarWindowsImage,omitempty"`

	// ProposalWindowsImage is SidecarWindowsImage under its key in the sidecar-driver
	// proposal.
	// +optional
	ProposalWindowsImage string `json:"SidecarImageWindowsImage,omitempty"`

	// EdgeWindowsImage is SidecarWindowsImage under its key in osm-edge.
	// +optional
	EdgeWindowsImage string `json:"sidecarImageWindowsImage,omitempty"`

	// InitContainerImage is the init container's image.
	// +optional
	InitContainerImage string `json:"initContainerImage,omitempty"`

	// ProxyServerPort is the controller's port that the proxies of this class connect to.
	// The default is the driver's.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	ProxyServerPort int32 `json:"proxyServerPort,omitempty"`

	// SidecarDisabledMTLS makes the pods of this class use plaintext within the mesh.
	// +optional
	SidecarDisabledMTLS bool `json:"sidecarDisabledMTLS,omitempty"`
}

// WindowsImage returns the image on Windows from the first of its keys that is set.
func (s *SidecarDriverSpec) WindowsImage() string {
	return cmp.Or(s.SidecarWindowsImage, s.ProposalWindowsImage, s.EdgeWindowsImage)
}

// TLSVersion is a version of TLS, or TLS_AUTO for the proxy's default.
//
// +kubebuilder:validation:Enum=TLS_AUTO;TLSv1_0;TLSv1_1;TLSv1_2;TLSv1_3
type TLSVersion string

// The TLS versions that a MeshConfig may name.
const (
	TLSAuto TLSVersion = "TLS_AUTO"
	TLSv1_0 TLSVersion = "TLSv1_0"
	TLSv1_1 TLSVersion = "TLSv1_1"
	TLSv1_2 TLSVersion = "TLSv1_2"
	TLSv1_3 TLSVersion = "TLSv1_3"
)

// LocalProxyMode is the address at which a sidecar reaches its application.
//
// +kubebuilder:validation:Enum=Localhost;PodIP
type LocalProxyMode string

const (
	// LocalProxyModeLocalhost is the loopback address.
	LocalProxyModeLocalhost LocalProxyMode = "Localhost"
	// LocalProxyModePodIP is the pod's own address, for applications that do not
	// listen on loopback.
	LocalProxyModePodIP LocalProxyMode = "PodIP"
)

// LocalDNSProxy makes the sidecar answer the pod's DNS queries (osm-edge).
type LocalDNSProxy struct {
	// Enable turns it on.
	// +optional
	Enable bool `json:"enable,omitempty"`

	// PrimaryUpstreamDNSServerIPAddr is the primary DNS server.
	// +optional
	PrimaryUpstreamDNSServerIPAddr string `json:"primaryUpstreamDNSServerIPAddr,omitempty"`

	// SecondaryUpstreamDNSServerIPAddr is the fallback DNS server.
	// +optional
	SecondaryUpstreamDNSServerIPAddr string `json:"secondaryUpstreamDNSServerIPAddr,omitempty"`
}
