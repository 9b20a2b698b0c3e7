// Package agentspec is what the injector tells the agent in a pod, as data: how
// to run the proxy, which probes to answer for the app, what to redirect. A
// driver's Patch emits it and the agent carries it out, so that a vendor never
// rebuilds the agent.
//
// It travels as JSON in environment variables of the injected containers and
// imports the standard library only.
package agentspec

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Environment variables of the injected containers.
const (
	// EnvSpec holds a Spec as JSON, in the sidecar container.
	EnvSpec = "OUTRIGGER_AGENT"
	// EnvRedirection holds a Redirection as JSON, in the init container.
	EnvRedirection = "OUTRIGGER_REDIRECTION"
	// RedirectionAnnotation holds a Redirection as JSON, on pods whose traffic the CNI
	// plug-in redirects. The injector writes it, and refuses pods that come with one.
	RedirectionAnnotation = "openservicemesh.io/redirection"

	// EnvController is the host name of the controller, which its certificate is
	// made out to, and EnvTrustDomain the trust domain of the pod's identity.
	EnvController  = "OUTRIGGER_CONTROLLER"
	EnvTrustDomain = "OUTRIGGER_TRUST_DOMAIN"
	// EnvPodName and the others are those of the pod.
	EnvPodName        = "POD_NAME"
	EnvPodNamespace   = "POD_NAMESPACE"
	EnvPodUID         = "POD_UID"
	EnvPodIP          = "POD_IP"
	EnvServiceAccount = "SERVICE_ACCOUNT"
	// EnvConcurrency is how many worker threads the proxy is to have, at least 1. Where a
	// Spec refers to it, it is no more than the processors that the agent may use.
	EnvConcurrency = "OUTRIGGER_CONCURRENCY"
)

// Paths in the sidecar container.
const (
	// BinDir holds the agent, which the init container has copied there.
	BinDir = "/outrigger/bin"
	// RunDir is where the proxy's files belong; it can be written to.
	RunDir = "/run/outrigger"
	// IdentityDir holds key.pem, chain.pem, bundle.pem, and identity.pem, which is key and
	// chain in one. They are replaced as one: they are links through ..data, a link that
	// is swapped, as the kubelet does it.
	IdentityDir = "/run/outrigger-identity"
	// TokenFile is the token of the pod's service account for the signing service.
	TokenFile = "/run/outrigger-token/token"
	// BundleFile is the trust bundle of the ConfigMap outrigger-ca, which may not be
	// there.
	BundleFile = "/run/outrigger-ca/ca.crt"
)

// Spec is everything that the agent does in a pod beside identity, which is the
// same for every proxy. In Command, in the Value of Env, in a file's Content, in ReadyURL, in Mirror.Check,
// in Reload.Command and in the URLs of Drain and Mirror, ${NAME} stands for the
// environment variable NAME of the sidecar container; a name that is not set is an error
// of the agent.
type Spec struct {
	// Command is the proxy's command line, the program first. It is never empty.
	Command []string `json:"command"`
	// Env are environment variables of the proxy and of the commands beside it, in the
	// place of the container's own of these names.
	Env []EnvVar `json:"env,omitempty"`
	// Files are written before the proxy starts.
	Files []File `json:"files,omitempty"`
	// Secrets, if set, has the agent serve the pod's identity and trust bundle to the
	// proxy, which then reads none of the files in IdentityDir.
	Secrets *Secrets `json:"secrets,omitempty"`
	// Mirror, if set, is kept equal to the driver's repository.
	Mirror *Mirror `json:"mirror,omitempty"`
	// Reload says how the proxy is told that its files changed. Nil means that
	// it notices by itself.
	Reload *Reload `json:"reload,omitempty"`
	// ReadyURL answers 2xx once the proxy has its first configuration.
	ReadyURL string `json:"readyURL,omitempty"`
	// Drain, if set, is carried out on SIGTERM before the proxy is stopped.
	Drain *Drain `json:"drain,omitempty"`
	// Probes are the app's own probes and hooks, which the agent answers.
	Probes []Probe `json:"probes,omitempty"`
	// DisabledMTLS says that the pod's traffic in the mesh is plaintext. The
	// agent still needs its identity to talk to the controller.
	DisabledMTLS bool `json:"disabledMTLS,omitempty"`
}

// EnvVar is an environment variable.
type EnvVar struct {
	// Name is not empty and holds no equals sign.
	Name  string `json:"name"`
	Value string `json:"value"`
}

// File is one file of the proxy's.
type File struct {
	// Path is absolute and lies on a volume that the sidecar can write to.
	Path string `json:"path"`
	// Content is the whole file.
	Content string `json:"content"`
}

// Secrets is a Unix socket on which the agent serves what is in IdentityDir by Envoy's
// secret discovery service, envoy.service.secret.v3.SecretDiscoveryService, method
// StreamSecrets, without TLS. It serves SecretIdentity, a TLS certificate with its key,
// and SecretBundle, a validation context, both inline. A renewal reaches the proxy as one
// update, without a reload. Only processes of the user that the agent runs as are served.
type Secrets struct {
	// Socket is the socket's absolute path, of at most 107 bytes. It belongs into
	// IdentityDir, which no other container mounts.
	Socket string `json:"socket"`
}

// The names of the secrets that the agent serves.
const (
	SecretIdentity = "identity"
	SecretBundle   = "bundle"
)

// Mirror is a folder that the agent keeps equal to a repository of files, by the
// protocol of package mirror. The folder is swapped as a whole, it is a link, and holds
// the last version that was good. The proxy is not started before there is one. A
// version at whose Reload the proxy ends, or whose Reload.Command fails, is rejected as
// one that fails the Check is, and the one before comes back; after a failed command it
// is tried again later.
type Mirror struct {
	// URL is the repository's address; only https is accepted. Whatever its host is, its
	// certificate must be made out to the controller and be signed by the root of the
	// repository.
	URL string `json:"url"`
	// Dir is the folder's absolute path, where nothing else is. Its parent can be written
	// to.
	Dir string `json:"dir"`
	// Live is how the names of those files begin that the proxy follows by itself, by
	// asking the agent at MirrorURL. When only such files have changed, the proxy is not
	// told by Reload, and neither is it when the identity files have changed, which it
	// follows in the same way. A version is in use once the proxy has asked with it. Live
	// files reach the proxy first and the folder within a second or two. Empty means that
	// there are none.
	Live string `json:"live,omitempty"`
	// Check, if set, is run before a version replaces another, and must exit with 0, or
	// the version is rejected with the end of what it printed: the folder stays as it
	// is, and the repository is told. It may take 30 seconds. ${MIRROR} in it stands for
	// the folder of the version that is checked, whose files should name each other by
	// relative paths.
	Check []string `json:"check,omitempty"`
}

// MirrorURL is where the agent serves the live files of a Mirror to the pod's own
// processes, by the protocol of package mirror, names with Mirror.Live. A file
// "identity" is among them, whose text changes whenever the files in IdentityDir do;
// it holds nothing of them. Any of them may read. Only processes of the user that the
// agent runs as can say that a version is in use, or reject it.
const MirrorURL = "http://127.0.0.1:15901/mirror"

// Reload is how the proxy takes up changed files: by exactly one of its fields. It is
// told once it is ready, or a few seconds after its start.
type Reload struct {
	// Signal is sent to the proxy's process, for example "HUP".
	Signal string `json:"signal,omitempty"`
	// Workers, with Signal, says that the process starts another worker process for each
	// reload, and loses a signal that comes while it is at that. The signal is sent each
	// second until there is a process below it that was not there before, and it is a
	// failure if there is none after eight.
	Workers bool `json:"workers,omitempty"`
	// Command is run beside it and must exit with 0 within 30 seconds. ${MIRROR} in it
	// stands for Mirror.Dir.
	Command []string `json:"command,omitempty"`
}

// Drain asks the proxy to finish what it does.
type Drain struct {
	// URL gets a POST; empty means that none is sent.
	URL string `json:"url,omitempty"`
	// Seconds is how long connections may take to end before the proxy is
	// stopped.
	Seconds int32 `json:"seconds"`
}

// Probe is one probe or lifecycle hook of an app's container. The agent answers
// GET <Path> with the result of asking the app itself.
type Probe struct {
	// Path is where the agent answers, for example "/app-health/web/readyz".
	Path string `json:"path"`
	// Kind is HTTP, TCP or GRPC.
	Kind ProbeKind `json:"kind"`
	// Port is the app's.
	Port int32 `json:"port"`
	// Host is where the app is asked; empty means the pod's own address.
	Host string `json:"host,omitempty"`
	// Scheme is "HTTP" or "HTTPS", whose certificate is not verified, as the
	// kubelet does not; HTTP probes only.
	Scheme string `json:"scheme,omitempty"`
	// URL is the path and query to ask for; HTTP probes only.
	URL string `json:"url,omitempty"`
	// Headers are sent with the request; HTTP probes only.
	Headers []Header `json:"headers,omitempty"`
	// Service is the gRPC health service asked for; GRPC probes only.
	Service string `json:"service,omitempty"`
	// TimeoutSeconds is the app's own limit, at least 1.
	TimeoutSeconds int32 `json:"timeoutSeconds"`
}

// ProbeKind is the protocol that a probe speaks with the app.
type ProbeKind string

// The kinds of probes.
const (
	HTTP ProbeKind = "HTTP"
	TCP  ProbeKind = "TCP"
	GRPC ProbeKind = "GRPC"
)

// Header is one HTTP header of a probe.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Redirection says which TCP connections of the pod go through the proxy: all
// but these.
type Redirection struct {
	// DisableInbound and DisableOutbound leave a whole direction alone.
	DisableInbound  bool `json:"disableInbound,omitempty"`
	DisableOutbound bool `json:"disableOutbound,omitempty"`
	// ExcludeInboundPorts and ExcludeOutboundPorts are never redirected.
	ExcludeInboundPorts  []int `json:"excludeInboundPorts,omitempty"`
	ExcludeOutboundPorts []int `json:"excludeOutboundPorts,omitempty"`
	// IncludeInboundPorts, where not empty, are the only ports that are redirected
	// (but for the excluded ones).
	IncludeInboundPorts []int `json:"includeInboundPorts,omitempty"`
	// IncludeOutboundRanges are CIDRs, and IncludeOutboundPorts ports at any
	// address, to which connections are redirected (but for the excluded ones).
	// Where both are empty, all are.
	IncludeOutboundRanges []string `json:"includeOutboundRanges,omitempty"`
	IncludeOutboundPorts  []int    `json:"includeOutboundPorts,omitempty"`
	// ExcludeOutboundRanges are CIDRs to which nothing is redirected.
	ExcludeOutboundRanges []string `json:"excludeOutboundRanges,omitempty"`
	// ExcludeInterfaces are names of network interfaces that are left alone.
	ExcludeInterfaces []string `json:"excludeInterfaces,omitempty"`
	// InboundConnectionsEach is how many connections to the application one address may
	// have at a time: more are refused before the proxy hears of them. 0 means
	// DefaultInboundConnectionsEach, and below 0 there is no limit.
	InboundConnectionsEach int `json:"inboundConnectionsEach,omitempty"`
}

// DefaultInboundConnectionsEach is more than a busy peer has, and few enough for a proxy
// to hold without a certificate having been shown.
const DefaultInboundConnectionsEach = 4096

// EnvValue returns v as JSON in a form that is safe as the value of a
// container's environment variable. The kubelet replaces $(NAME) and $$ in it,
// which an app's probe path may well hold, so a dollar sign is written as
// \u0024; only ${, which the kubelet leaves alone, stays as it is to be read.
func EnvValue(v any) (string, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("encoding %T: %w", v, err)
	}
	return dollars.Replace(string(b)), nil
}

// dollars can replace in the whole of a JSON text, since a dollar sign stands
// nowhere but in its strings.
var dollars = strings.NewReplacer("${", "${", "$", `\u0024`)
