// Package agentspec defines the instructions of the injector for the agent in a pod: how
// to run the proxy, which probes to answer for the app, which traffic to redirect. A
// driver's Patch emits them and the agent executes them, so that a new driver needs no
// new agent.
//
// They are passed as JSON in environment variables of the injected containers. This
// package imports only the standard library.
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
	// plug-in redirects. The injector sets it, and rejects pods that already have it.
	RedirectionAnnotation = "openservicemesh.io/redirection"

	// EnvController is the controller's host name, as in its certificate, and
	// EnvTrustDomain the trust domain of the pod's identity.
	EnvController  = "OUTRIGGER_CONTROLLER"
	EnvTrustDomain = "OUTRIGGER_TRUST_DOMAIN"
	// EnvPodName and the following variables describe the pod.
	EnvPodName        = "POD_NAME"
	EnvPodNamespace   = "POD_NAMESPACE"
	EnvPodUID         = "POD_UID"
	EnvPodIP          = "POD_IP"
	EnvServiceAccount = "SERVICE_ACCOUNT"
	// EnvClass is the pod's sidecar class, and EnvWorkload the name of its owner, such as a
	// Deployment, or its own; both are labels of metrics.
	EnvClass    = "OUTRIGGER_CLASS"
	EnvWorkload = "OUTRIGGER_WORKLOAD"
	// EnvConcurrency is the number of worker threads of the proxy, at least 1. In a Spec
	// it is limited to the number of CPUs that the agent may use.
	EnvConcurrency = "OUTRIGGER_CONCURRENCY"
	// EnvSpans is the number of the file descriptor to which the proxy writes spans. The
	// agent sets it for the proxy and the other commands of a Spec with Spans. An agent that
	// is older than the injector does not, and then the proxy must write none.
	EnvSpans = "OUTRIGGER_SPANS"
	// EnvRecords is a second such descriptor, for a Spec with Records. The agent sets EnvSpans
	// for such a Spec, too.
	EnvRecords = "OUTRIGGER_RECORDS"
)

// Paths in the sidecar container.
const (
	// BinDir holds the agent, copied there by the init container.
	BinDir = "/outrigger/bin"
	// RunDir is the writable folder for the proxy's files.
	RunDir = "/run/outrigger"
	// IdentityDir holds key.pem, chain.pem, bundle.pem, and identity.pem, which is key and
	// chain in one file. They are replaced atomically: as in the kubelet's volumes they
	// are links through ..data, a link that is swapped.
	IdentityDir = "/run/outrigger-identity"
	// TokenFile is the pod's service account token for the signing service.
	TokenFile = "/run/outrigger-token/token"
	// BundleFile is the trust bundle from the ConfigMap outrigger-ca, which may be
	// missing.
	BundleFile = "/run/outrigger-ca/ca.crt"
	// CertificateDir is a volume in which the kubelet maintains the pod's identity, if it
	// requests the certificates. CredentialFile there holds the key and the certificate with
	// its intermediates, and RootsFile the trust bundle. Without the volume the agent requests
	// certificates with the token.
	CertificateDir = "/run/outrigger-certificate"
	CredentialFile = "credential.pem"
	RootsFile      = "roots.pem"
)

// Spec tells the agent everything except the handling of identity, which is the same for
// every proxy. In Command, in the Value of Env, in a file's Content, in ReadyURL, in
// Mirror.Check, in Reload.Command and in the URLs of Drain, Mirror and Upgrade, ${NAME} is replaced
// by the environment variable NAME of the sidecar container; the agent fails if it is not
// set.
type Spec struct {
	// Command is the proxy's command line, the program first. Without one there is no
	// proxy: the agent only keeps the identity, which ShareIdentity then must share, and the
	// files, and is ready once there is a certificate.
	Command []string `json:"command,omitempty"`
	// Version is a command that prints the version of the proxy's program, which the agent
	// tells the server of the Mirror, with that of OpenSSL if it prints that too. It runs once
	// in each container that runs the proxy.
	Version []string `json:"version,omitempty"`
	// Env are environment variables of the proxy and of the other commands. They override
	// those of the container.
	Env []EnvVar `json:"env,omitempty"`
	// Files are written before the proxy starts.
	Files []File `json:"files,omitempty"`
	// Secrets, if set, makes the agent serve the pod's identity and trust bundle to the
	// proxy, which then does not read the files in IdentityDir.
	Secrets *Secrets `json:"secrets,omitempty"`
	// ShareIdentity makes the files in IdentityDir, the private key among them, readable to
	// the group of the agent's process, for applications that use the identity themselves.
	// Otherwise only the agent's user can read the key.
	ShareIdentity bool `json:"shareIdentity,omitempty"`
	// Mirror, if set, is kept equal to the driver's repository.
	Mirror *Mirror `json:"mirror,omitempty"`
	// Reload makes the proxy reload changed files. Nil means that it watches them itself.
	Reload *Reload `json:"reload,omitempty"`
	// Spans, if set, makes the agent send the proxy's spans to a collector.
	Spans *Spans `json:"spans,omitempty"`
	// Records, if set, makes the agent count the proxy's requests and connections, and serve
	// the metrics of package telemetry.
	Records *Records `json:"records,omitempty"`
	// OnDemand, if set, makes the agent take connections to destinations that the proxy does
	// not know.
	OnDemand *OnDemand `json:"onDemand,omitempty"`
	// ReadyURL answers 2xx once the proxy has its first configuration.
	ReadyURL string `json:"readyURL,omitempty"`
	// Drain, if set, runs on SIGTERM before the proxy is stopped.
	Drain *Drain `json:"drain,omitempty"`
	// Upgrade, if set, lets another version of the proxy take over while the pod runs.
	Upgrade *Upgrade `json:"upgrade,omitempty"`
	// Probes are the app's own probes and hooks, which the agent answers.
	Probes []Probe `json:"probes,omitempty"`
	// DisabledMTLS says that the pod's traffic in the mesh is plaintext. The agent still
	// needs its identity for the connection to the controller.
	DisabledMTLS bool `json:"disabledMTLS,omitempty"`
}

// EnvVar is an environment variable.
type EnvVar struct {
	// Name is not empty and contains no equals sign.
	Name  string `json:"name"`
	Value string `json:"value"`
}

// File is one of the proxy's files.
type File struct {
	// Path is absolute and on a volume that the sidecar can write to.
	Path string `json:"path"`
	// Content is the whole file.
	Content string `json:"content"`
}

// Secrets is a Unix socket on which the agent serves the content of IdentityDir by Envoy's
// secret discovery service, envoy.service.secret.v3.SecretDiscoveryService, method
// StreamSecrets, without TLS. It serves SecretIdentity, a TLS certificate with its key,
// and SecretBundle, a validation context, both inline. A renewal reaches the proxy as one
// update, without a reload. Only processes with the agent's user ID are served.
type Secrets struct {
	// Socket is the socket's absolute path, of at most 107 bytes. It should be in
	// IdentityDir, which no other container mounts.
	Socket string `json:"socket"`
}

// The names of the secrets that the agent serves.
const (
	SecretIdentity = "identity"
	SecretBundle   = "bundle"
)

// Mirror is a folder that the agent keeps equal to a repository of files, by the protocol
// of package mirror. The folder is a link that is swapped atomically and holds the last
// good version. The proxy is started once there is one. A version is rejected if it fails
// the Check, if the proxy exits on its Reload or if its Reload.Command fails; the agent
// then restores the previous version. It retries a version whose command failed later.
type Mirror struct {
	// URL is the repository's address; only https is accepted. The server's certificate
	// must be issued for the controller's name, whatever the URL's host, and be signed by
	// the repository's root.
	URL string `json:"url"`
	// Dir is the folder's absolute path. Nothing else may be there, and its parent must
	// be writable.
	Dir string `json:"dir"`
	// Live is the name prefix of the files whose changes the proxy polls itself, from the
	// agent at MirrorURL. If only such files or the identity files change, which the
	// proxy polls too, there is no Reload. A version is in use once the proxy has named it
	// in a request. Live files reach the proxy first and the folder within a second or
	// two. Empty means that there are none.
	Live string `json:"live,omitempty"`
	// Check, if set, runs before a version is put into use, unless only live files have
	// changed, and must exit with 0 within 30 seconds. Otherwise the version is rejected: the
	// folder is unchanged, and the end of the command's output is reported to the repository.
	// ${MIRROR} is replaced by the folder of the checked version, whose files should refer to
	// each other by relative paths.
	Check []string `json:"check,omitempty"`
}

// MirrorURL is where the agent serves the live files of a Mirror to the pod's processes,
// by the protocol of package mirror, with names that include Mirror.Live. The additional
// file "identity" changes whenever the files in IdentityDir do; it contains nothing of
// them. Any process of the pod may read. Only processes with the agent's user ID can
// report a version as in use, or reject it.
const MirrorURL = "http://127.0.0.1:15901/mirror"

// Reload makes the proxy load changed files, by exactly one of Signal and Command. The
// agent runs it once the proxy is ready, or a few seconds after its start.
type Reload struct {
	// Signal is sent to the proxy's process, for example "HUP".
	Signal string `json:"signal,omitempty"`
	// Workers, with Signal, says that the process starts a new worker process for each
	// reload and may lose a signal that arrives meanwhile. The signal is repeated every
	// second until there is a new child process; without one after eight seconds the
	// reload has failed. It is over when no former worker has a listening TCP socket any
	// longer, for which the workers have 30 seconds.
	Workers bool `json:"workers,omitempty"`
	// Command is run and must exit with 0 within 30 seconds. ${MIRROR} is replaced by
	// Mirror.Dir.
	Command []string `json:"command,omitempty"`
}

// Spans lets a proxy that can't send spans itself write them as lines to the file descriptor
// EnvSpans, a pipe. A line holds a Span as JSON, which other text without braces may precede
// and any text may follow. The agent skips lines without a Span, or whose Span has no TraceID,
// so a proxy may write a line for each request, sampled or not. The pipe has room for some
// thousand lines; a proxy should rather lose a line than wait.
type Spans struct {
	// Collector is the name of a file in Mirror.Dir with a Collector as JSON. It is read
	// before spans are sent. Without it they are dropped.
	Collector string `json:"collector"`
}

// Collector says where the agent sends spans, and what all spans of the proxy have in common.
type Collector struct {
	// Protocol is "zipkin" (JSON, version 2) or "otlp" (gRPC).
	Protocol string `json:"protocol"`
	// Address is a host and a port, called without TLS, and Path the HTTP path for Zipkin.
	Address string `json:"address"`
	Path    string `json:"path,omitempty"`
	// Service is the name of the service, and IP its address.
	Service string `json:"service"`
	IP      string `json:"ip,omitempty"`
	// Tags are added to those of each span.
	Tags map[string]string `json:"tags,omitempty"`
}

// Span is the record of a request that the proxy has forwarded. All fields but Status are
// text, which a proxy can leave empty without knowing the type.
type Span struct {
	// TraceID has 16 or 32 hexadecimal digits, ID and ParentID have 16. ParentID may be empty.
	TraceID  string `json:"traceId"`
	ID       string `json:"id"`
	ParentID string `json:"parentId,omitempty"`
	// Kind is "CLIENT" or "SERVER".
	Kind string `json:"kind"`
	// Shared is not empty if the span has the ID of the client's, as is usual with Zipkin.
	Shared string `json:"shared,omitempty"`
	Name   string `json:"name"`
	// Start and End are in microseconds since 1970.
	Start string `json:"start"`
	End   string `json:"end"`
	// Status is the status code of the answer; less than 100 means that there was none.
	Status int `json:"status"`
	// Tags describe the request. Empty ones are left out.
	Tags map[string]string `json:"tags,omitempty"`
}

// OnDemand is for proxies that are given the services that their pods use (mesh.Outbound's
// Unknown). The proxy hands a connection to an unknown destination to the agent at
// UnknownAddress, with a header of the PROXY protocol, version 2, which has the original
// source and destination. The agent asks the controller about the destination and hands the
// connection back with the same header, at one of these sockets of the proxy. Each is the
// absolute path of a Unix socket, which only the proxy's user may use, or an address and port
// on loopback.
type OnDemand struct {
	// Known is for destinations in the mesh. The proxy treats the connection as one of the
	// application. If it still does not know the destination, it hands the connection to the
	// agent again, which notices that.
	Known string `json:"known"`
	// Outside is for destinations outside the mesh, to which the rules of egress apply. The
	// proxy must not hand the connection to the agent again.
	Outside string `json:"outside"`
}

// UnknownAddress is where the agent takes connections to unknown destinations.
const UnknownAddress = "127.0.0.1:15902"

// Drain lets the proxy finish its connections before it is stopped.
type Drain struct {
	// URL gets a POST; empty means that none is sent.
	URL string `json:"url,omitempty"`
	// Seconds is how long connections may take to end before the proxy is stopped.
	Seconds int32 `json:"seconds"`
}

// Upgrade says how one process of the proxy replaces another in a running pod. The new one is
// started beside the former, with the same Command, files and environment, in another
// container of the pod with another image. All TCP sockets on which the proxy listens must
// have SO_REUSEPORT, those of its administration too; Unix sockets may be replaced. Once the
// new process is ready, all new connections go to it, and then the former is told to end.
type Upgrade struct {
	// Signal is sent to the former process, for example "USR1", and URL gets a POST; both
	// are optional. The process should finish its open connections and may then exit.
	Signal string `json:"signal,omitempty"`
	URL    string `json:"url,omitempty"`
	// Seconds is how long that may take before the process is stopped.
	Seconds int32 `json:"seconds"`
}

// SuccessorSocket is the Unix socket on which the agent waits for the container with another
// version of the proxy, if the Spec has an Upgrade.
const SuccessorSocket = RunDir + "/successor.sock"

// Probe is one probe or lifecycle hook of an app's container. The agent probes the app
// and answers GET <Path> with the result.
type Probe struct {
	// Path is the path on the agent, for example "/app-health/web/readyz".
	Path string `json:"path"`
	// Kind is HTTP, TCP or GRPC.
	Kind ProbeKind `json:"kind"`
	// Port is the app's port.
	Port int32 `json:"port"`
	// Host is the address to probe; empty means the pod's own.
	Host string `json:"host,omitempty"`
	// Scheme is "HTTP" or "HTTPS"; like the kubelet, the agent does not verify the
	// certificate. HTTP probes only.
	Scheme string `json:"scheme,omitempty"`
	// URL is the path and query of the request; HTTP probes only.
	URL string `json:"url,omitempty"`
	// Protocol is HTTP2 for HTTP/2 without TLS and without an upgrade, which needs the scheme
	// "HTTP". Anything else means HTTP/1.1, or what TLS negotiates. HTTP probes only.
	Protocol string `json:"protocol,omitempty"`
	// Headers are sent with the request; HTTP probes only.
	Headers []Header `json:"headers,omitempty"`
	// Service is the gRPC health service to check; GRPC probes only.
	Service string `json:"service,omitempty"`
	// Mode is TLS to connect with TLS, without verifying the certificate. Anything else means
	// plaintext. GRPC probes only.
	Mode string `json:"mode,omitempty"`
	// Hook is PostStart or PreStop for a lifecycle hook, which must be of the kind HTTP. Like
	// the kubelet, the agent waits for the app's answer without a limit and accepts every
	// status. Without an answer it closes the kubelet's connection, because only then the
	// kubelet's request fails.
	Hook string `json:"hook,omitempty"`
	// TimeoutSeconds is the timeout of the original probe, at least 1. Hooks have none.
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// The values of Probe.Hook, which are the names of Kubernetes' fields.
const (
	PostStart = "postStart"
	PreStop   = "preStop"
)

// ProbeKind is the protocol of a probe.
type ProbeKind string

// The kinds of probes.
const (
	HTTP ProbeKind = "HTTP"
	TCP  ProbeKind = "TCP"
	GRPC ProbeKind = "GRPC"
)

// The values of Probe.Protocol and Probe.Mode, which are Kubernetes' own.
const (
	HTTP2 = "HTTP2"
	TLS   = "TLS"
)

// Header is one HTTP header of a probe.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Redirection selects the TCP connections of the pod that go through the proxy: by
// default all of them.
type Redirection struct {
	// DisableInbound and DisableOutbound switch off redirection in one direction.
	DisableInbound  bool `json:"disableInbound,omitempty"`
	DisableOutbound bool `json:"disableOutbound,omitempty"`
	// ExcludeInboundPorts and ExcludeOutboundPorts are never redirected.
	ExcludeInboundPorts  []int `json:"excludeInboundPorts,omitempty"`
	ExcludeOutboundPorts []int `json:"excludeOutboundPorts,omitempty"`
	// IncludeInboundPorts, if not empty, are the only ports that are redirected, except
	// for the excluded ones.
	IncludeInboundPorts []int `json:"includeInboundPorts,omitempty"`
	// IncludeOutboundRanges are CIDRs, and IncludeOutboundPorts ports at any address, to
	// which connections are redirected, except for the excluded ones. If both are empty,
	// all connections are.
	IncludeOutboundRanges []string `json:"includeOutboundRanges,omitempty"`
	IncludeOutboundPorts  []int    `json:"includeOutboundPorts,omitempty"`
	// ExcludeOutboundRanges are CIDRs to which connections are never redirected.
	ExcludeOutboundRanges []string `json:"excludeOutboundRanges,omitempty"`
	// ExcludeInterfaces are names of network interfaces whose traffic is never
	// redirected.
	ExcludeInterfaces []string `json:"excludeInterfaces,omitempty"`
	// InboundConnectionsEach is how many connections to the application one address may
	// have at a time; the kernel refuses more before they reach the proxy. 0 means
	// DefaultInboundConnectionsEach, negative means no limit.
	InboundConnectionsEach int `json:"inboundConnectionsEach,omitempty"`
	// TranslateIPv6 is for proxies that cannot ask the kernel for the original destination
	// of IPv6 connections. They find it in the addresses of the connections instead, which
	// are translated to TranslatedIPv6. A redirected connection goes to the prefix, the last
	// 8 bytes of the original address, the original port and two zero bytes. An outbound
	// connection also comes from the prefix, the first 8 bytes of the original address and
	// four zero bytes. An inbound one keeps the client's address, and its original address
	// is one of the pod's.
	TranslateIPv6 bool `json:"translateIPv6,omitempty"`
}

// TranslatedIPv6 is the prefix of translated addresses, see Redirection. It is local to
// each pod and part of the range for private use, chosen at random.
const TranslatedIPv6 = "fdc6:e81b::/32"

// DefaultInboundConnectionsEach is more than a busy peer opens, and few enough for a
// proxy to hold before its clients have shown a certificate.
const DefaultInboundConnectionsEach = 4096

// EnvValue returns v as JSON in a form that is safe as the value of a container's
// environment variable. The kubelet expands $(NAME) and $$ in it, which an app's probe
// path may contain, so dollar signs are escaped as \u0024. Only ${, which the kubelet
// does not expand, is kept for readability.
func EnvValue(v any) (string, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("encoding %T: %w", v, err)
	}
	return escapeDollars(string(b)), nil
}

// escapeDollars writes dollar signs that do not begin "${" as \u0024, so that the kubelet does not
// expand them. It can be applied to a whole JSON text: dollar signs occur only in its strings.
func escapeDollars(text string) string {
	if !strings.Contains(text, "$") {
		return text
	}
	var b strings.Builder
	b.Grow(len(text) + 16)
	for {
		before, after, found := strings.Cut(text, "$")
		b.WriteString(before)
		switch {
		case !found:
			return b.String()
		case strings.HasPrefix(after, "{"):
			b.WriteByte('$')
		default:
			b.WriteString(`\u0024`)
		}
		text = after
	}
}
