package outrigger_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/outrigger-mesh/outrigger/"

// rule is one row of the table of allowed imports.
type rule struct {
	// packages is a package of this module; /... includes all packages below it.
	packages string
	// may lists the allowed direct imports beside the standard library, outside of
	// tests. Paths without a dot in their first element belong to this module.
	may string
	// why is the reason for the limit.
	why string
}

// kubernetes are the imports of most packages that handle pods: the types, not a client.
const kubernetes = "k8s.io/api/... k8s.io/apimachinery/... "

// rules is the table, which has a row for every package. Add a package only when another
// one is too large, and add its row.
var rules = []rule{
	// The vocabulary, which all packages share.
	{"apis/identity/v1", "google.golang.org/grpc/... google.golang.org/protobuf/...",
		"it is the API of the signing service, which the agent in every pod uses too"},
	{"apis/outrigger/v1alpha1", "apis/status k8s.io/apimachinery/... sigs.k8s.io/gateway-api/apis/v1",
		"an AccessPolicy has Gateway API's matches of requests, so that what users know of routes holds for it"},
	{"apis/...", "apis/... k8s.io/apimachinery/... k8s.io/api/core/v1",
		"other projects' clients use the types of the CRDs too, and should not get our dependencies"},
	{"mesh", "",
		"the model of the mesh depends on neither Kubernetes nor a proxy; it must build and be tested anywhere"},
	{"internal/fact", "mesh k8s.io/apimachinery/pkg/labels",
		"facts are what the controller knows of the mesh, of which a driver sees Views only"},
	{"certificate", "",
		"names and certificates only, without keys and without a CA"},
	{"health", "",
		"every driver returns it"},

	// The contract for vendors. They import whatever it imports.
	{"sidecar", "health mesh sidecar/driver",
		"the registry uses drivers only through their contract"},
	{"sidecar/driver", "mesh certificate health apis/... sidecar/agentspec github.com/google/uuid k8s.io/api/core/v1 k8s.io/client-go/kubernetes k8s.io/client-go/rest",
		"a vendor's driver compiles against this package, so its imports are promises"},
	{"sidecar/agentspec", "",
		"the agent is a small static binary and shares this package with the contract"},
	{"sidecar/telemetry", "",
		"the agent, drivers and commands share these names, and nothing else"},
	{"sidecar/podtemplate", "sidecar/agentspec sidecar/driver github.com/Masterminds/sprig/v3 sigs.k8s.io/yaml " + kubernetes,
		"a template gets the same data as its driver, and nothing of the mesh"},
	{"internal/protofield", "google.golang.org/protobuf/encoding/protowire",
		"the agent in every pod uses it too: it knows no message"},
	{"internal/bell", "",
		"it wakes goroutines, whatever they do"},
	{"internal/limit", "",
		"it limits connections and does not identify clients"},
	{"sidecar/xds", "health internal/bell internal/limit internal/protofield mesh sidecar/delivery sidecar/driver golang.org/x/sync/semaphore golang.org/x/time/rate github.com/envoyproxy/go-control-plane/... google.golang.org/genproto/googleapis/rpc/... google.golang.org/grpc/... google.golang.org/protobuf/...",
		"a delivery kit owns a socket and knows no proxy's configuration"},
	{"sidecar/delivery", "health mesh sidecar/driver",
		"the shared code of the kits depends on none of their protocols"},
	{"sidecar/mirror", "mesh",
		"the agent in every pod uses it too: it is small, and depends on neither the clients nor the contents of files"},
	{"sidecar/program", "internal/pki mesh sidecar/driver",
		"it finds programs for all drivers, and depends on no particular proxy"},
	{"sidecar/pcre", "",
		"it translates regular expressions, whatever their use"},
	{"sidecar/repo", "health internal/limit mesh sidecar/delivery sidecar/driver sidecar/mirror golang.org/x/time/rate",
		"a delivery kit owns a socket and knows no proxy's configuration"},
	{"sidecar/drivertest", "apis/... mesh certificate internal/pki sidecar/agentspec sidecar/driver sidecar/program github.com/google/go-cmp/cmp github.com/google/uuid golang.org/x/net/dns/dnsmessage k8s.io/client-go/kubernetes k8s.io/client-go/rest k8s.io/pod-security-admission/... " + kubernetes,
		"vendors run the suite in their own repositories, with their own drivers"},

	// The drivers: public packages, and their proxy's own libraries.
	{"drivers/envoy", public + "github.com/envoyproxy/go-control-plane/... google.golang.org/protobuf/... sigs.k8s.io/yaml",
		"a driver of ours has no way in that a vendor's has not: no internal package and no other driver"},
	{"drivers/grpc", public + "github.com/envoyproxy/go-control-plane/... google.golang.org/protobuf/...",
		"a driver of ours has no way in that a vendor's has not: no internal package and no other driver"},
	{"drivers/haproxy/syntax", "",
		"it makes text safe in HAProxy's configuration, whatever the text is"},
	{"drivers/haproxy", public + "drivers/haproxy/syntax",
		"a driver of ours has no way in that a vendor's has not: no internal package and no other driver"},
	{"drivers/pipy", public,
		"a driver of ours has no way in that a vendor's has not: no internal package and no other driver"},
	{"drivers/null", public,
		"it is the one to copy, so it shows the least that a driver needs"},
	{"drivers/standard", "drivers/envoy drivers/grpc drivers/haproxy drivers/null drivers/pipy",
		"it is a list of drivers"},

	// The internal packages, from the objects of the API server along the data flow.
	{"internal/source", "internal/pki sigs.k8s.io/gateway-api/apis/v1 apis/... internal/fact mesh sidecar/agentspec sidecar/driver k8s.io/client-go/kubernetes/scheme sigs.k8s.io/json sigs.k8s.io/controller-runtime/pkg/client " + kubernetes,
		"it converts objects to facts; other packages fetch the objects"},
	{"internal/source/kube", "apis/... internal/fact internal/source mesh sidecar/agentspec sidecar/driver golang.org/x/sync/... k8s.io/client-go/... sigs.k8s.io/controller-runtime/... " + kubernetes,
		"it fetches, and leaves the meaning to internal/source"},
	{"internal/source/dir", "sidecar/driver apis/... internal/fact internal/manifest internal/source mesh sidecar/agentspec github.com/fsnotify/fsnotify go.yaml.in/yaml/v3 k8s.io/client-go/kubernetes/scheme sigs.k8s.io/gateway-api/apis/v1 sigs.k8s.io/yaml sigs.k8s.io/controller-runtime/pkg/client " + kubernetes,
		"it fetches without a cluster, and leaves the meaning to internal/source"},
	{"internal/catalog", "apis/metadata internal/bell internal/fact internal/graph mesh",
		"it computes Snapshots and Views from facts, whatever their source"},
	{"internal/graph", "mesh",
		"it recomputes the dependents of a change, whatever the data"},
	{"internal/convert", "internal/fact apis/outrigger/v1alpha1 mesh sigs.k8s.io/gateway-api/apis/v1 " + kubernetes,
		"it reads facts, and writes routes and policies for the user; nothing of the mesh depends on them"},
	{"internal/explain", "internal/fact internal/terminal mesh sidecar/telemetry",
		"it reads only a Snapshot, and no driver's configuration"},
	{"internal/inject", "internal/metric apis/... mesh certificate health sidecar sidecar/agentspec sidecar/driver sidecar/podtemplate github.com/go-json-experiment/json/... github.com/google/uuid github.com/prometheus/client_golang/prometheus/... internal/limit k8s.io/client-go/... sigs.k8s.io/yaml " + kubernetes,
		"it decides from its arguments, and uses drivers only through package sidecar"},
	{"internal/controller", "apis/... certificate health internal/... mesh sidecar sidecar/driver github.com/go-logr/logr github.com/prometheus/client_golang/... golang.org/x/sync/errgroup k8s.io/client-go/... sigs.k8s.io/controller-runtime/... " + kubernetes,
		"it wires the controller's process and decides nothing; flags and texts are the command's"},
	{"internal/injector", "internal/inject internal/inject/policy internal/meshconfig internal/servingcert internal/source internal/source/dir internal/source/kube internal/version mesh sidecar sidecar/driver internal/limit github.com/go-logr/logr github.com/prometheus/client_golang/prometheus/... golang.org/x/sync/errgroup k8s.io/client-go/... sigs.k8s.io/controller-runtime/... " + kubernetes,
		"it wires the injector's process and decides nothing; flags and texts are the command's"},
	{"internal/meshconfig", "apis/... internal/source internal/source/kube internal/version mesh sidecar sigs.k8s.io/yaml",
		"all programs resolve a MeshConfig with it, so it depends on the linked drivers and on no running component"},
	{"internal/inject/policy", "apis/metadata internal/inject sidecar/agentspec sidecar/driver github.com/evanphx/json-patch/v5 " + kubernetes,
		"it learns from the injector what to write, and no expression language is compiled into the product"},
	{"internal/inject/offline", "apis/metadata internal/inject internal/manifest internal/terminal github.com/evanphx/json-patch/v5 github.com/go-json-experiment/json/... sigs.k8s.io/kustomize/kyaml/... sigs.k8s.io/yaml k8s.io/apimachinery/...",
		"it uses the same engine as the webhook, and no client: its only input is manifests"},
	{"internal/manifest", "github.com/go-json-experiment/json/...",
		"it splits text, and leaves its meaning to the readers of manifests"},
	{"internal/pki", "",
		"the agent in every pod links it, and it contains X.509 code only, without dependencies on this project"},
	{"internal/servingcert", "internal/bell internal/metric internal/pki github.com/fsnotify/fsnotify github.com/prometheus/client_golang/prometheus/... k8s.io/client-go/... " + kubernetes,
		"any webhook could use it: it depends on neither the mesh nor injection"},
	{"internal/audit", "internal/metric apis/... internal/fact internal/inject internal/source internal/source/kube mesh github.com/prometheus/client_golang/prometheus/... k8s.io/client-go/... sigs.k8s.io/controller-runtime/... " + kubernetes,
		"it checks the results of injection and never injects; it calls no driver"},
	{"internal/gateway", "apis/metadata internal/fact internal/source mesh sidecar/driver sidecar/podtemplate sigs.k8s.io/controller-runtime/... k8s.io/client-go/kubernetes/scheme k8s.io/client-go/util/workqueue sigs.k8s.io/gateway-api/apis/v1 " + kubernetes,
		"it makes what runs Gateways; what their proxies do follows from Views"},
	{"internal/upgrade", "internal/metric internal/page sidecar/agentspec sidecar/driver github.com/prometheus/client_golang/prometheus k8s.io/client-go/kubernetes " + kubernetes,
		"it changes pods, and leaves the decision what they should have to the injector's engine"},
	{"internal/classmove", "apis/... internal/catalog internal/fact internal/inject internal/page internal/registry internal/source internal/traffic mesh sidecar/driver sidecar/telemetry k8s.io/client-go/kubernetes sigs.k8s.io/controller-runtime/pkg/client " + kubernetes,
		"it decides from what it is given and changes a cluster; it knows no driver, and asks no proxy itself"},
	{"internal/identity", "internal/bell internal/metric internal/limit apis/... mesh certificate sidecar/driver internal/identity/issuer internal/pki github.com/prometheus/client_golang/prometheus/... golang.org/x/sync/... google.golang.org/grpc/... google.golang.org/protobuf/encoding/protowire k8s.io/client-go/... sigs.k8s.io/controller-runtime/... " + kubernetes,
		"the decision who may have which certificate does not depend on any proxy"},
	{"internal/identity/issuer/issuertest", "internal/identity/issuer",
		"the rules for all issuers depend on no particular one"},
	{"internal/identity/issuer", "certificate internal/pki k8s.io/client-go/... " + kubernetes,
		"an issuer signs requests, and does not decide who may have a certificate"},
	{"internal/identity/root", "internal/bell internal/metric apis/... internal/identity/issuer internal/identity/store internal/pki internal/source mesh github.com/prometheus/client_golang/prometheus/... k8s.io/client-go/... " + kubernetes,
		"it alone decides which roots are trusted; it does not decide who may have a certificate, and leaves storing and publishing to others"},
	{"internal/identity/store", "k8s.io/client-go/... " + kubernetes,
		"it keeps Secrets and gives their content no meaning"},
	{"internal/identity/publish", "apis/... certificate internal/audit internal/identity/issuer internal/identity/root internal/identity/store internal/pki internal/source internal/source/kube mesh k8s.io/client-go/... sigs.k8s.io/controller-runtime/... " + kubernetes,
		"it publishes what internal/identity/root decides, as the audit does"},
	{"internal/identity/kubelet", "internal/identity internal/pki internal/source/kube k8s.io/client-go/... sigs.k8s.io/controller-runtime/... " + kubernetes,
		"it answers kubelets in the API server; internal/identity decides what is signed"},
	{"internal/ondemand", "apis/metadata internal/catalog internal/fact internal/identity/store internal/source mesh k8s.io/client-go/... " + kubernetes,
		"it writes what is learned where the source reads it, and changes no View itself"},
	{"internal/jwks", "internal/fact internal/source mesh",
		"what is fetched becomes facts, and nothing is fetched but what facts ask for and the MeshConfig allows"},
	{"internal/servercert", "internal/fact internal/source mesh sidecar/driver " + kubernetes,
		"it keeps the private keys of certificates for the drivers; all others get facts without them"},
	{"internal/registry", "internal/metric mesh sidecar/driver github.com/prometheus/client_golang/prometheus/...",
		"it records which proxies are connected, and not their configuration"},
	{"internal/accesslog", "mesh sidecar/telemetry",
		"it reads the lines of any proxy, and depends on none"},
	{"internal/traffic", "internal/fact mesh sidecar/telemetry github.com/prometheus/client_model/go github.com/prometheus/common/expfmt github.com/prometheus/common/model",
		"it computes from texts and facts, and reads nothing itself"},
	{"internal/scrape", "internal/fact internal/traffic mesh sidecar sidecar/driver sidecar/telemetry github.com/prometheus/common/model",
		"it reads metrics, and leaves their meaning to internal/traffic"},
	{"internal/metric", "",
		"the agent in every pod uses these names, as the control plane does"},
	{"internal/monitoring", "internal/metric sidecar/telemetry sigs.k8s.io/yaml",
		"it writes queries, and depends on names only"},
	{"internal/debug", "apis/... health mesh internal/bell internal/explain internal/fact internal/identity internal/registry internal/source internal/traffic sidecar sidecar/driver internal/limit k8s.io/client-go/kubernetes " + kubernetes,
		"it shows the state of other packages, and changes nothing"},
	{"internal/dashboard", "internal/debug internal/explain internal/registry internal/traffic mesh sidecar/telemetry",
		"it shows what other packages found out, and has no way into the cluster of its own"},
	{"internal/redact", "",
		"code that removes secrets must be easy to review"},
	{"internal/page", "k8s.io/client-go/tools/pager k8s.io/apimachinery/...",
		"it reads lists of any objects, whatever their use"},
	{"internal/check", "apis/metadata internal/inject internal/inject/policy internal/page internal/pki internal/registry internal/source internal/source/kube internal/traffic mesh sidecar/driver sidecar/telemetry k8s.io/client-go/... " + kubernetes,
		"it reads a cluster and reports what is wrong; the command connects it to the cluster"},
	{"internal/agent/kit", "internal/metric google.golang.org/grpc/... google.golang.org/protobuf/encoding/protowire",
		"all rooms of the agent share it, so it knows none of them"},
	{"internal/agent/socket", "internal/limit golang.org/x/sys/unix",
		"it asks the kernel about sockets, whatever their use"},
	{"internal/agent/ondemand", "internal/agent/kit sidecar/agentspec github.com/pires/go-proxyproto",
		"it asks by a function that it is given, and knows neither the controller nor the proxy's process"},
	{"internal/agent/record", "internal/agent/kit internal/bell internal/limit internal/protofield mesh sidecar/agentspec sidecar/telemetry golang.org/x/sys/unix google.golang.org/grpc/... google.golang.org/protobuf/encoding/protowire",
		"it reads lines, whoever writes them"},
	{"internal/agent/probe", "internal/agent/kit internal/agent/socket internal/limit sidecar/agentspec golang.org/x/sys/unix google.golang.org/grpc/...",
		"it asks the app, and what the pod's state is it asks the functions that it is given"},
	{"internal/agent/identity", "internal/agent/kit internal/bell apis/identity/v1 internal/pki internal/protofield mesh sidecar/agentspec google.golang.org/grpc/... google.golang.org/protobuf/encoding/protowire",
		"it holds the pod's key: it knows neither the proxy's process nor its files"},
	{"internal/agent/process", "internal/agent/kit internal/bell internal/agent/socket apis/identity/v1 sidecar/agentspec golang.org/x/sys/unix",
		"it runs the proxy, and knows neither its files nor how another version replaces it"},
	{"internal/agent/handover", "internal/agent/kit internal/agent/process internal/agent/socket sidecar/agentspec golang.org/x/sys/unix",
		"it replaces the proxy's process, and does not know what the proxy reads"},
	{"internal/agent/rollout", "internal/agent/identity internal/bell internal/agent/kit internal/agent/process internal/agent/socket mesh sidecar/agentspec sidecar/mirror golang.org/x/sys/unix",
		"it decides which files the proxy has, whichever proxy reads them"},
	{"internal/agent", "internal/agent/... mesh sidecar/agentspec sidecar/telemetry golang.org/x/sys/unix",
		"it connects its rooms, of which none imports it; in every pod, it is small, has no Kubernetes client and depends on no driver"},
	{"internal/capture", "sidecar/agentspec github.com/google/nftables/... github.com/mdlayher/netlink github.com/vishvananda/netlink golang.org/x/sys/unix",
		"a CNI plug-in must be able to call it, so it depends on neither a pod nor the agent"},
	{"internal/cni", "internal/capture sidecar/agentspec github.com/containernetworking/cni/...",
		"it runs as root on every node: it is small, has no Kubernetes client and decides nothing about pods"},
	{"internal/version", "",
		"every program links it"},
	{"internal/terminal", "",
		"code that keeps texts of users from controlling a terminal must be easy to review"},
	{"internal/cli/usage", "github.com/spf13/cobra sigs.k8s.io/yaml",
		"all commands share it"},
	{"internal/cli/install", "apis/... charts/outrigger internal/cli/usage internal/inject internal/inject/policy internal/injector internal/meshconfig internal/page internal/source internal/terminal github.com/spf13/... helm.sh/helm/v4/... k8s.io/apiextensions-apiserver/pkg/apis/... k8s.io/client-go/... sigs.k8s.io/yaml " + kubernetes,
		"it is the one command that needs Helm, which neither the control plane nor the demo compiles"},
	{"internal/cli", "apis/... certificate health mesh sidecar sidecar/driver internal/... github.com/go-logr/logr github.com/prometheus/client_golang/... github.com/spf13/... golang.org/x/sync/... golang.org/x/term k8s.io/client-go/... k8s.io/klog/v2 k8s.io/streaming/... sigs.k8s.io/... " + kubernetes,
		"commands call the internal packages; the program's main package chooses the drivers"},

	// The programs.
	{"app", "internal/cli internal/cli/install",
		"a vendor's program calls it, and chooses its own drivers"},
	{"cmd/outrigger", "app drivers/standard",
		"a vendor copies this main package"},
	{"cmd/outrigger-core", "internal/cli drivers/standard golang.org/x/crypto/x509roots/fallback",
		"the control plane, which installs nothing"},
	{"cmd/outrigger-agent", "internal/agent internal/capture sidecar/agentspec",
		"the agent's binary must not grow with the control plane"},
	{"cmd/outrigger-cni", "internal/cni",
		"the program on every node must not grow with the control plane"},
	{"charts/outrigger", "helm.sh/helm/v4/...",
		"a chart is files, which Helm renders"},

	// The workshop, which no package above imports: meshes on one machine.
	{"test/lab", "github.com/google/nftables/... github.com/vishvananda/netlink/... golang.org/x/sys/unix " + kubernetes,
		"it provides pods on one machine, for any mesh"},
	{"test/localmesh", "apis/... mesh test/compile internal/fact internal/gateway internal/identity internal/inject internal/inject/offline internal/injector test/lab internal/manifest internal/meshconfig internal/source internal/source/dir internal/upgrade sidecar sidecar/driver golang.org/x/net/dns/dnsmessage golang.org/x/sync/... sigs.k8s.io/gateway-api/apis/v1 sigs.k8s.io/yaml " + kubernetes,
		"it is the complete mesh on one machine: unchanged components, with a lab in place of the cluster"},
	{"test/playground", "apis/... internal/dashboard internal/debug internal/inject test/lab internal/limit test/localmesh internal/manifest internal/meshconfig internal/terminal sidecar/driver golang.org/x/sync/... golang.org/x/sys/unix sigs.k8s.io/yaml " + kubernetes,
		"it shows a mesh on one machine from outside, and changes it as a user would, with manifests"},
	{"test/demo", "test/lab test/localmesh test/playground samples",
		"it shows the mesh from outside, and changes it as a user would, with manifests"},
	{"test/command", "internal/cli internal/cli/usage test/demo test/lab test/localmesh test/playground internal/terminal internal/version sidecar github.com/spf13/... k8s.io/apimachinery/...",
		"a vendor's program calls it, and chooses its own drivers"},
	{"cmd/outrigger-lab", "test/command drivers/standard",
		"a vendor copies this main package"},
	{"samples", "",
		"it is files"},
	{"samples/bookstore", "google.golang.org/grpc/...",
		"it is an ordinary application, independent of the mesh"},

	// The workshop: suites, benchmarks and what they share.
	{"test/compile", "",
		"tests of any package may run programs"},
	{"test/apiserver", "k8s.io/client-go/... sigs.k8s.io/controller-runtime/... " + kubernetes,
		"it starts other projects' programs, and must not depend on ours"},
	{"test/admission", "test/apiserver github.com/google/go-cmp/cmp k8s.io/client-go/... sigs.k8s.io/controller-runtime/... " + kubernetes,
		"it shows the programs as a user runs them, from outside"},
	{"test/bench", "apis/metadata drivers/standard internal/inject internal/source sidecar sidecar/driver sidecar/drivertest test/bench/process github.com/prometheus/client_golang/prometheus/... golang.org/x/sync/... " + kubernetes,
		"it measures the webhook through its handler, as the API server calls it"},
	{"test/bench/scale", "apis/metadata internal/protofield apis/identity/v1 charts/outrigger internal/identity internal/inject internal/pki internal/source/kube mesh sidecar/mirror test/apiserver test/bench/page test/bench/process github.com/envoyproxy/go-control-plane/... github.com/go-logr/logr k8s.io/client-go/... golang.org/x/sync/... google.golang.org/grpc/... google.golang.org/protobuf/... sigs.k8s.io/controller-runtime/... github.com/google/pprof/profile " + kubernetes,
		"it measures the controller's program from outside, as proxies and the API server see it"},
	{"test/bench/process", "",
		"it reads /proc, whatever the process is"},
	{"test/bench/page", "",
		"it writes text between two lines, whatever was measured"},
	{"test/bench/dataplane", "drivers/standard test/lab test/localmesh sidecar/agentspec sidecar/driver test/bench/page test/bench/process golang.org/x/sync/... golang.org/x/sys/unix google.golang.org/grpc/... k8s.io/api/core/v1",
		"it measures a running mesh, as its users see it, and knows no proxy but by its hand-written configuration"},
	{"test/bench/agent", "apis/identity/v1 internal/pki sidecar/agentspec test/bench/process github.com/envoyproxy/go-control-plane/... google.golang.org/grpc/...",
		"it measures the agent's program from outside, as a pod runs it"},
	{"test/check", "",
		"it runs the go command and git, and depends on no package"},
	{"test/releasenotes", "sigs.k8s.io/yaml",
		"it reads notes and asks git, and depends on no package"},
	{"test/city", "",
		"it writes text as a user would"},
	{"test/explain", "",
		"it writes text as a user would"},
	{"test/access", "",
		"it contains only tests"},
	{"test/behaviour", "health internal/identity/issuer test/lab test/localmesh mesh sidecar sidecar/driver sidecar/drivertest sidecar/telemetry github.com/envoyproxy/go-control-plane/... go.opentelemetry.io/proto/otlp/trace/v1 golang.org/x/net/http2 golang.org/x/net/http2/hpack google.golang.org/genproto/googleapis/rpc/... google.golang.org/grpc/... k8s.io/api/core/v1",
		"it tests a running mesh by requests, as its users see it; a vendor's program and proxy are parts of that mesh"},
	{"test/apps", "drivers/standard test/lab test/localmesh",
		"it runs programs in a mesh, as its users see it"},
	{"test/container", "golang.org/x/sys/unix",
		"it runs any command"},
	{"test/ends", "drivers/standard test/lab test/localmesh",
		"it sends messages through a mesh, as its users do"},
	{"test/fleet", "internal/pki sidecar/drivertest",
		"it knows no protocol of the delivery kits, whose tests it serves"},
	{"test/race", "",
		"tests of any package may ask it"},
	{"test/mutate", "sigs.k8s.io/yaml",
		"it changes files and runs tests, and depends on neither"},
	{"test/monitoring", "",
		"it contains only tests"},
	{"test/dashboard", "",
		"it contains only tests"},
	{"test/golden", "",
		"it contains only tests"},
	{"test/e2e", "test/apiserver k8s.io/client-go/... sigs.k8s.io/controller-runtime/... " + kubernetes,
		"it tests the programs as a user runs them, from outside"},
	{"test/e2e/app", "internal/pki google.golang.org/grpc/...",
		"it is the application in the pods of the end-to-end tests; gRPC is for its health service"},
	{".", "",
		"the root contains only tests"},
}

// public lists the packages of this module that drivers may import, and the types of pods.
const public = "apis/... certificate health mesh sidecar sidecar/agentspec sidecar/delivery sidecar/driver sidecar/mirror sidecar/pcre sidecar/podtemplate sidecar/program sidecar/repo sidecar/telemetry sidecar/xds k8s.io/api/core/v1 "

// isWorkshop reports whether a package proves or shows the product and is no part of it.
func isWorkshop(pkg string) bool {
	return pkg == "cmd/outrigger-lab" || slices.ContainsFunc([]string{"test/...", "samples/..."}, func(pattern string) bool { return matches(pattern, pkg) })
}

// listed is a part of the output of go list.
type listed struct {
	ImportPath, Dir, Name, Doc string
	GoFiles, Imports           []string
}

func listPackages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Name,Doc,GoFiles,Imports", "./...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var packages []listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatalf("reading the output of go list: %v", err)
		}
		p.ImportPath = inModule(p.ImportPath)
		packages = append(packages, p)
	}
}

// inModule returns a package's path below the module, or "." for the root; other
// modules' paths stay.
func inModule(importPath string) string {
	if importPath+"/" == module {
		return "."
	}
	return strings.TrimPrefix(importPath, module)
}

func TestImports(t *testing.T) {
	for _, p := range listPackages(t) {
		r, err := ruleFor(p.ImportPath)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, i := range p.Imports {
			if !r.allows(i) {
				t.Errorf("%s imports %s, which its row in rules does not allow: %s", p.ImportPath, inModule(i), r.why)
			}
		}
	}
}

// ruleFor returns the row of a package.
func ruleFor(pkg string) (rule, error) {
	at := slices.IndexFunc(rules, func(r rule) bool { return matches(r.packages, pkg) })
	if at < 0 {
		return rule{}, errors.New("package " + pkg + " has no row in rules; put the code into an existing package, or add a row with the imports that it may have")
	}
	return rules[at], nil
}

func (r rule) allows(importPath string) bool {
	if first, _, _ := strings.Cut(importPath, "/"); !strings.Contains(first, ".") && importPath != "C" {
		return true
	}
	return slices.ContainsFunc(strings.Fields(r.may), func(pattern string) bool { return matches(pattern, inModule(importPath)) })
}

// matches reports whether a package matches a pattern, as the go command does for patterns
// that end in /...
func matches(pattern, pkg string) bool {
	if parent, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == parent || strings.HasPrefix(pkg, parent+"/")
	}
	return pkg == pattern
}

// TestImportsCatches checks the rules against imports that they must allow or refuse.
func TestImportsCatches(t *testing.T) {
	for _, tt := range []struct {
		pkg, imported string
		want          bool
	}{
		{"mesh", "strings", true},
		{"mesh", "k8s.io/api/core/v1", false},
		{"mesh", "C", false},
		{"drivers/pipy", module + "sidecar/driver", true},
		{"drivers/pipy", module + "internal/inject", false},
		{"drivers/envoy", module + "internal/fact", false},
		{"sidecar/xds", module + "internal/fact", false},
		{"drivers/pipy", module + "drivers/envoy", false},
		{"drivers/pipy", "github.com/envoyproxy/go-control-plane/pkg/cache/v3", false},
		{"drivers/envoy", "github.com/envoyproxy/go-control-plane/pkg/cache/v3", true},
		{"sidecar/driver", "k8s.io/client-go/tools/cache", false},
		{"internal/servingcert", module + "mesh", false},
		{"internal/inject", module + "drivers/envoy", false},
		{"internal/cli", module + "drivers/standard", false},
		{"internal/cli", module + "test/lab", false},
		{"internal/cli", module + "internal/inject/offline", true},
		{"app", module + "internal/clip", false},
		{"apis/config/v1alpha1", module + "apis/config/v1alpha2", true},
		{"apis/config/v1alpha1", module + "mesh", false},
		{"test/admission", module + "internal/inject", false},
	} {
		r, err := ruleFor(tt.pkg)
		if err != nil {
			t.Error(err)
		} else if got := r.allows(tt.imported); got != tt.want {
			t.Errorf("may %s import %s: %t, want %t", tt.pkg, inModule(tt.imported), got, tt.want)
		}
	}
	if _, err := ruleFor("internal/attic"); err == nil {
		t.Error("a package without a row was accepted")
	}
}

// TestRules checks the table itself.
func TestRules(t *testing.T) {
	seen := make(map[string]bool)
	for _, r := range rules {
		if seen[r.packages] {
			t.Errorf("%s has two rows", r.packages)
		}
		seen[r.packages] = true
		if r.why == "" {
			t.Errorf("%s has no reason", r.packages)
		}
		for _, pattern := range strings.Fields(r.may) {
			if first, _, _ := strings.Cut(pattern, "/"); strings.Contains(first, ".") {
				continue
			}
			if isWorkshop(pattern) && !isWorkshop(r.packages) {
				t.Errorf("%s may import %s: the product must not depend on the workshop", r.packages, pattern)
			}
			if !slices.ContainsFunc(rules, func(other rule) bool {
				return matches(other.packages, pattern) || matches(pattern, strings.TrimSuffix(other.packages, "/..."))
			}) {
				t.Errorf("%s may import %s, which has no row", r.packages, pattern)
			}
		}
	}
}
