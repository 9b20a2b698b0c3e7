// Package drivertest is the conformance suite for sidecar drivers, in the manner of
// testing/fstest. A driver's own test is a single call of TestDriver; each failure
// explains the broken rule of the contract and its reason.
//
// It imports only the contract and Kubernetes libraries, not Outrigger's internal
// packages, so that vendors can run it anywhere. The behaviour of running proxies is
// tested by package test/behaviour, which is separate because it runs a complete
// mesh on one machine.
package drivertest

import (
	"errors"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// TestDriver runs the complete suite: TestPatch, TestStart, TestTranslate, TestFeatures
// and TestDelivery.
func TestDriver(t *testing.T, d driver.Driver) {
	t.Helper()
	TestPatch(t, d)
	TestStart(t, d)
	TestTranslate(t, d)
	TestFeatures(t, d)
	TestDelivery(t, d)
}

// TestPatch tests that the driver's Patch follows the contract. Each rule is a subtest,
// such as Patch/idempotent, which explains itself when it fails. Run it with -race,
// since some rules are about concurrent calls.
//
// The driver need not be registered. It gets many kinds of pods for the class
// "conformance", without user-defined templates.
func TestPatch(t *testing.T, d driver.Driver) {
	t.Helper()
	run(t, "Patch", d, patchRules)
}

// TestStart tests that the driver's Start serves the proxies of a mesh with one pod, on
// loopback, and no other clients. A driver whose Translate returns nothing has nothing
// to serve.
func TestStart(t *testing.T, d driver.Driver) {
	t.Helper()
	run(t, "Start", d, startRules)
}

// TestTranslate tests that the driver's Translate is a pure function of the View. The
// Views are those of a built-in mesh: an empty one, one for each way to require a
// feature, and one that requires everything.
func TestTranslate(t *testing.T, d driver.Driver) {
	t.Helper()
	run(t, "Translate", d, translateRules)
}

// TestFeatures tests that the driver's declared features are accurate. If two Views
// differ only in their use of a feature, the configurations must differ if the driver
// declares the feature. Otherwise they must be equal, or the configuration must deny
// what requires the feature. FeatureHTTP2Resets, FeatureWebSocket and FeatureOpenConnections
// are not visible in configurations; package behaviour tests them.
func TestFeatures(t *testing.T, d driver.Driver) {
	t.Helper()
	run(t, "Features", d, featureRules())
}

// TestDelivery tests that the real proxy accepts the output of Translate. The tests are
// skipped with a message if the proxy is not on this machine.
func TestDelivery(t *testing.T, d driver.Driver) {
	t.Helper()
	run(t, "Delivery", d, deliveryRules)
}

func run(t *testing.T, method string, d driver.Driver, rules []rule) {
	t.Helper()
	for _, r := range rules {
		t.Run(method+"/"+r.name, func(t *testing.T) {
			t.Helper()
			err := r.check(subject{driver: d, limit: callLimit, t: t})
			if errors.Is(err, driver.ErrNoProxy) {
				t.Skipf("SKIPPED: the real proxy was not tested: %v", err)
			}
			if err != nil {
				t.Errorf("%v\n\nThe rule: %s", err, r.why)
			}
		})
	}
}

// callLimit is the time limit of one call of the driver. It is generous, so that a busy
// machine fails no test.
const callLimit = 10 * time.Second

// rule is one rule of the contract.
type rule struct {
	name string
	// why is the rule with its reason. It is shown with each failure.
	why string
	// check returns an error that describes the driver's behaviour and the situation.
	check func(subject) error
}

var patchRules = []rule{
	{
		name:  "missing_context",
		why:   `Patch gets its arguments from driver.InjectorFrom(ctx). Without an InjectorContext it returns the error "missing Injector Context", which points to a bug in the caller.`,
		check: patchMissingContext,
	},
	{
		name:  "cancelled",
		why:   "Patch returns an error soon after its ctx ends. The API server waits at most ten seconds for an answer, so later results are wasted. Check the ctx that Patch was called with: it may end before the InjectorContext in it.",
		check: patchCancelled,
	},
	{
		name:  "sidecar",
		why:   "Patch adds a container with Sidecar.Image, the name driver.ProxyContainer, and the pull policy and resources of the InjectorContext. Users set these by MeshConfig and annotations, and find the container by its name with any driver.",
		check: patchSidecar,
	},
	{
		name:  "form",
		why:   "With Sidecar.Native the sidecar is an init container with restartPolicy Always: an ordinary container would keep Jobs from finishing and init containers from using the network. Otherwise it is an ordinary container, and no container has a restartPolicy. With Sidecar.HoldApplication an ordinary sidecar comes first and has a postStart hook, for which the kubelet waits before it starts the app.",
		check: patchForm,
	},
	{
		name:  "idempotent",
		why:   "Patching a patched pod changes nothing, even if the API server has filled in defaults in between. The webhook is called again when another webhook has changed the pod (reinvocationPolicy IfNeeded).",
		check: patchIdempotent,
	},
	{
		name:  "deterministic",
		why:   "Equal arguments give equal pods, each time and from concurrent goroutines. Then pods can be explained, replicas agree, and offline injection shows what the webhook will do. Beware of ranging over a map.",
		check: patchDeterministic,
	},
	{
		name:  "user_kept",
		why:   "Patch adds to the pod and keeps everything of the user's, in its order: containers, volumes, labels, annotations and every field that is set. In the user's containers only env, envFrom and volumeMounts may grow.",
		check: patchKeeps,
	},
	{
		name:  "user_wins",
		why:   "Users change the sidecar by a container of their own with the sidecar's name: it is merged over the driver's container, so that there is one container of that name, with every field that the user set and the driver's fields for the rest.",
		check: patchUserWins,
	},
	{
		name:  "valid",
		why:   "The API server accepts the patched pod: names are unique and well-formed, every mount has its volume, a probe has one handler, and so on. An error here would reject every pod of the class.",
		check: patchValid,
	},
	{
		name:  "restricted",
		why:   "Every container that Patch adds satisfies the Pod Security level restricted by its own securityContext, so that a mesh does not lower the level of a namespace. The only exception is an init container that prepares the pod: it may run as root, add NET_ADMIN, and be privileged if Sidecar.PrivilegedInit is set. With Sidecar.CNI there is no exception.",
		check: patchRestricted,
	},
	{
		name:  "no_secret",
		why:   "Nothing that Patch adds contains a private key or refers to a Secret. The agent creates a workload's key in its pod, and it never leaves the pod.",
		check: patchNoSecret,
	},
	{
		name:  "ports",
		why:   "The ports that Patch declares do not collide with the app's, by number or by name; otherwise a Service could reach the sidecar instead. They are not host ports, and the proxy's admin port, which is only for loopback, is not declared.",
		check: patchPorts,
	},
	{
		name:  "agent",
		why:   "Exactly one container that Patch adds configures the agent, in OUTRIGGER_AGENT: a complete agentspec.Spec with the probes of the InjectorContext, files on writable volumes, and no ${NAME} that the container does not set. Its identity is on a volume in memory.",
		check: patchAgent,
	},
	{
		name:  "proxyless",
		why:   "A driver that is driver.Proxyless redirects no traffic, adds no privileges, and gives the app's containers the pod's identity, which they can only read: the application itself is the client and the server of the mesh.",
		check: patchProxyless,
	},
	{
		name:  "windows",
		why:   "In a Windows pod, Patch adds no field that the API server rejects there, no volume in memory and no redirection, which Windows does not support.",
		check: patchWindows,
	},
	{
		name:  "offline",
		why:   "Offline injection has no cluster and no admission request: KubeClient is nil, ProxyUUID is zero, and the BootstrapCertificate has no bundle. Patch works without them.",
		check: patchOffline,
	},
	{
		name:  "no_side_effects",
		why:   "Patch writes nothing to the cluster (the webhook is registered with sideEffects: None), changes no argument except the pod, and gives the same pod in a dry run as in a real one.",
		check: patchNoSideEffects,
	},
	{
		name:  "huge",
		why:   "The cost of Patch is proportional to the pod. Patching a pod with 2,000 env vars takes a small part of the time that an admission may take.",
		check: patchHuge,
	},
	{
		name:  "scalars",
		why:   "Text that a user writes into an annotation or a name ends up as the value of one field, whatever it contains: newlines, quotes, braces, colons. Otherwise anybody who may create a pod could set any field of the sidecar.",
		check: patchScalars,
	},
	{
		name:  "template",
		why:   "A driver with a PodTemplate always returns the same text, and its Patch uses the user's template instead if InjectorContext.Templates has one.",
		check: patchTemplate,
	},
}
