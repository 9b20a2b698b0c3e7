package v1alpha2

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
)

// SidecarSpec configures the sidecars.
type SidecarSpec struct {
	// EnablePrivilegedInitContainer makes the init container privileged. Otherwise
	// it has the capability NET_ADMIN and no other.
	// +optional
	EnablePrivilegedInitContainer bool `json:"enablePrivilegedInitContainer,omitempty"`

	// LogLevel is how much the proxies log. Sidecars that already run keep theirs.
	// +optional
	// +kubebuilder:validation:Enum=trace;debug;info;warning;warn;error;critical;off
	LogLevel string `json:"logLevel,omitempty"`

	// SidecarClass is the name of the driver for pods that do not choose one by
	// annotation, compared without regard to case. Empty means envoy.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	SidecarClass string `json:"sidecarClass,omitempty"`

	// SidecarImage is the proxy's image on Linux for the default class.
	// +optional
	SidecarImage string `json:"sidecarImage,omitempty"`

	// SidecarWindowsImage is the proxy's image on Windows for the default class.
	// +optional
	SidecarWindowsImage string `json:"sidecarWindowsImage,omitempty"`

	// ProposalWindowsImage is SidecarWindowsImage under the key that the
	// sidecar-driver proposal gave it.
	// +optional
	ProposalWindowsImage string `json:"SidecarImageWindowsImage,omitempty"`

	// EdgeWindowsImage is SidecarWindowsImage under a key that osm-edge gave it.
	// +optional
	EdgeWindowsImage string `json:"sidecarImageWindowsImage,omitempty"`

	// EdgeV1alpha1WindowsImage is SidecarWindowsImage under the key that osm-edge
	// gave it in v1alpha1.
	// +optional
	EdgeV1alpha1WindowsImage string `json:"sideWindowsImage,omitempty"`

	// EnvoyImage is Open Service Mesh's name for the image on Linux, from the time
	// when Envoy was its only proxy.
	// +optional
	EnvoyImage string `json:"envoyImage,omitempty"`

	// EnvoyWindowsImage is Open Service Mesh's name for the image on Windows.
	// +optional
	EnvoyWindowsImage string `json:"envoyWindowsImage,omitempty"`

	// InitContainerImage is the init container's image for the default class.
	// +optional
	InitContainerImage string `json:"initContainerImage,omitempty"`

	// SidecarDrivers configures drivers one by one. A driver without an entry
	// works with its own defaults.
	// +optional
	// +listType=map
	// +listMapKey=sidecarName
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, b.sidecarName.lowerAscii() == a.sidecarName.lowerAscii()))",message="each sidecarName may be used once, whatever its case; merge the entries of one driver into one"
	SidecarDrivers []SidecarDriverSpec `json:"sidecarDrivers,omitempty"`

	// MaxDataPlaneConnections is how many proxies one controller serves at a time;
	// 0 means any number.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxDataPlaneConnections int32 `json:"maxDataPlaneConnections,omitempty"`

	// ConfigResyncInterval is the period after which a proxy is sent its whole
	// configuration again; empty or 0s means never.
	// +optional
	ConfigResyncInterval Duration `json:"configResyncInterval,omitempty"`

	// DrainSeconds is how long connections may take to end when a pod is stopped. Left
	// out, it is the driver's choice, 5 for those that come with Outrigger. It is
	// Outrigger's own.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	DrainSeconds *int32 `json:"drainSeconds,omitempty"`

	// PreStopSeconds is how long a sidecar goes on as before when its pod is stopped,
	// while others learn that the pod ends. Left out, it is 0. It is Outrigger's own.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	PreStopSeconds *int32 `json:"preStopSeconds,omitempty"`

	// Concurrency is the number of a proxy's worker threads, for pods that do not choose
	// one by annotation. 0 means as many as the CPU limit of the sidecar container,
	// rounded up, and two where it has no limit. Sidecars that already run keep theirs.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	Concurrency int32 `json:"concurrency,omitempty"`

	// SidecarTimeout is a proxy's timeout to connect, to read, to write and for
	// idle connections, in seconds; 0 means 60 (osm-edge).
	// +optional
	// +kubebuilder:validation:Minimum=0
	SidecarTimeout int32 `json:"sidecarTimeout,omitempty"`

	// Resources are the compute resources of the sidecar container.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitzero"`

	// TLSMinProtocolVersion is the oldest TLS version between sidecars. Empty
	// means TLSv1_3; Open Service Mesh's own default, TLSv1_2, must be asked for.
	// +optional
	TLSMinProtocolVersion TLSVersion `json:"tlsMinProtocolVersion,omitempty"`

	// TLSMaxProtocolVersion is the newest TLS version between sidecars. Empty
	// means TLSv1_3.
	// +optional
	TLSMaxProtocolVersion TLSVersion `json:"tlsMaxProtocolVersion,omitempty"`

	// CipherSuites are the ciphers for TLS 1.2 and older, by their OpenSSL names.
	// Empty means the proxy's own choice.
	// +optional
	CipherSuites []string `json:"cipherSuites,omitempty"`

	// ECDHCurves are the curves for key agreement, such as X25519 and P-256. Empty
	// means the proxy's own choice.
	// +optional
	ECDHCurves []string `json:"ecdhCurves,omitempty"`

	// LocalProxyMode was the address at which a sidecar of Open Service Mesh reached
	// its application. Sidecars reach it at the pod's address, whatever this says, so
	// ports that only loopback serves stay closed.
	// +optional
	// +kubebuilder:default=Localhost
	LocalProxyMode LocalProxyMode `json:"localProxyMode,omitempty"`

	// LocalDNSProxy makes the sidecar answer the pod's DNS queries (osm-edge).
	// +optional
	LocalDNSProxy LocalDNSProxy `json:"localDNSProxy,omitzero"`
}

// WindowsImage returns the image on Windows for the default class under whichever
// of its keys it was given, the right key first; empty if under none. EnvoyWindowsImage
// is not among them, because it is Envoy's whatever the default class is.
func (s *SidecarSpec) WindowsImage() string {
	return cmp.Or(s.SidecarWindowsImage, s.ProposalWindowsImage, s.EdgeWindowsImage, s.EdgeV1alpha1WindowsImage)
}

// SidecarDriverSpec configures one driver. Its images are for the pods of its
// class; empty means the driver's own.
type SidecarDriverSpec struct {
	// SidecarName is the name under which the driver is registered, compared
	// without regard to case.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	SidecarName string `json:"sidecarName"`

	// SidecarImage is the proxy's image on Linux.
	// +optional
	SidecarImage string `json:"sidecarImage,omitempty"`

	// SidecarWindowsImage is the proxy's image on Windows.
	// +optional
	SidecarWindowsImage string `json:"sidecarWindowsImage,omitempty"`

	// ProposalWindowsImage is SidecarWindowsImage under the key that the
	// sidecar-driver proposal gave it.
	// +optional
	ProposalWindowsImage string `json:"SidecarImageWindowsImage,omitempty"`

	// EdgeWindowsImage is SidecarWindowsImage under the key that osm-edge gave it.
	// +optional
	EdgeWindowsImage string `json:"sidecarImageWindowsImage,omitempty"`

	// InitContainerImage is the init container's image.
	// +optional
	InitContainerImage string `json:"initContainerImage,omitempty"`

	// ProxyServerPort is the controller's port that the proxies of this class
	// connect to. Left out, it is the driver's own.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	ProxyServerPort int32 `json:"proxyServerPort,omitempty"`

	// SidecarDisabledMTLS makes the pods of this class speak plaintext within the
	// mesh.
	// +optional
	SidecarDisabledMTLS bool `json:"sidecarDisabledMTLS,omitempty"`
}

// WindowsImage returns the image on Windows under whichever of its keys it was
// given, the right key first; empty if under none.
func (s *SidecarDriverSpec) WindowsImage() string {
	return cmp.Or(s.SidecarWindowsImage, s.ProposalWindowsImage, s.EdgeWindowsImage)
}

// TLSVersion is a version of TLS, or TLS_AUTO for the proxy's own choice.
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

	// PrimaryUpstreamDNSServerIPAddr is the DNS server that it asks first.
	// +optional
	PrimaryUpstreamDNSServerIPAddr string `json:"primaryUpstreamDNSServerIPAddr,omitempty"`

	// SecondaryUpstreamDNSServerIPAddr is the DNS server that it asks next.
	// +optional
	SecondaryUpstreamDNSServerIPAddr string `json:"secondaryUpstreamDNSServerIPAddr,omitempty"`
}
