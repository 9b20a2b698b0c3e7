// Package drivertest is the conformance suite for sidecar drivers, in the manner
// of testing/fstest. A driver's own test is one call of TestDriver; what fails says
// which rule of the contract was broken, and why there is that rule.
//
// It imports the contract and libraries of Kubernetes, nothing of Outrigger's
// inside, so a vendor can run it anywhere. What the proxy makes of its configuration is
// tested by package drivertest/behaviour, which runs a whole mesh on one machine and so
// is a package apart.
package drivertest

import (
	"errors"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// TestDriver tests all that there are rules for: TestPatch, TestStart, TestTranslate,
// TestFeatures and TestDelivery.
func TestDriver(t *testing.T, d driver.Driver) {
	t.Helper()
	TestPatch(t, d)
	TestStart(t, d)
	TestTranslate(t, d)
	TestFeatures(t, d)
	TestDelivery(t, d)
}

// TestPatch tests that the driver's Patch keeps every rule of the contract. Each
// rule is a subtest, such as Patch/idempotent, and explains itself when it fails. Run it with -race: some
// of the rules are about being called from many goroutines.
//
// The driver need not be registered. It gets pods of many kinds for the class
// "conformance", with no templates of the user's.
func TestPatch(t *testing.T, d driver.Driver) {
	t.Helper()
	run(t, "Patch", d, patchRules)
}

// TestStart tests that the driver's Start serves the proxies of a mesh of one pod, on
// loopback, and nobody else. A driver whose Translate returns nothing has nothing to
// serve.
func TestStart(t *testing.T, d driver.Driver) {
	t.Helper()
	run(t, "Start", d, startRules)
}

// TestTranslate tests that the driver's Translate is a pure function of the View, for
// Views of a built-in mesh: an empty one, one for each way to ask for a feature, and one
// that asks for everything.
func TestTranslate(t *testing.T, d driver.Driver) {
	t.Helper()
	run(t, "Translate", d, translateRules)
}

// TestFeatures tests that the driver's declaration of features is honest: a View that
// differs from another only in what it asks of a feature has another configuration if
// the driver declares the feature, and the same one, or a closed door, if it does not.
// FeatureWebSocket is no View's to ask for; the table of behaviour tests it.
func TestFeatures(t *testing.T, d driver.Driver) {
	t.Helper()
	run(t, "Features", d, featureRules())
}

// TestDelivery tests, with the real proxy, that it takes what Translate makes. Where the
// driver's Checker finds no proxy on this machine the tests are skipped aloud.
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
				t.Skipf("SKIPPED: the real proxy has not been asked: %v", err)
			}
			if err != nil {
				t.Errorf("%v\n\nThe rule: %s", err, r.why)
			}
		})
	}
}

// callLimit is how long one call of the driver may take. It is far more than
// any needs, so that a busy machine fails no test.
const callLimit = 10 * time.Second

// rule is one rule of the contract.
type rule struct {
	name string
	// why is the rule in words, with its reason. It is shown with each failure.
	why string
	// check returns an error that says what the driver did, in which situation.
	check func(subject) error
}

var patchRules = []rule{
	{
		name:  "missing_context",
		why:   `Patch gets its arguments from driver.InjectorFrom(ctx). Called without an InjectorContext it returns the error "missing Injector Context", since core can be no clearer about a bug of its own.`,
		check: patchMissingContext,
	},
	{
		name:  "cancelled",
		why:   "Patch returns an error soon after its ctx ends. The API server waits ten seconds for an answer at most, and what came too late would be worked out for nobody. Ask the ctx that Patch was called with: it may end before the InjectorContext in it.",
		check: patchCancelled,
	},
	{
		name:  "sidecar",
		why:   "Patch adds a container with Sidecar.Image and the name of driver.ProxyContainer, with the pull policy and the resources that the InjectorContext gives. Users set these by MeshConfig and annotation, and find the container by its name, whatever the driver.",
		check: patchAsAsked,
	},
	{
		name:  "form",
		why:   "Where Sidecar.Native is set, what goes on running is an init container with restartPolicy Always: an ordinary one would keep Jobs from finishing, and init containers from having a network. Else it is an ordinary container, and none has a restartPolicy. With Sidecar.HoldApplication an ordinary one comes first and has a postStart hook, for which the kubelet waits before it starts the app.",
		check: patchForm,
	},
	{
		name:  "idempotent",
		why:   "Called with a pod that it has already patched, Patch changes nothing, nor if the API server has filled in its defaults in between. The webhook is called again when another webhook has changed the pod (reinvocationPolicy IfNeeded).",
		check: patchIdempotent,
	},
	{
		name:  "deterministic",
		why:   "The same arguments give the same pod, each time and from many goroutines at once. So a pod can be explained, two replicas agree, and offline injection shows what the webhook will do. Beware of ranging over a map.",
		check: patchDeterministic,
	},
	{
		name:  "user_kept",
		why:   "Patch adds to the pod and keeps all that is the user's, in its order: containers, volumes, labels, annotations and every field that is set. In the user's containers nothing but env, envFrom and volumeMounts may grow.",
		check: patchKeeps,
	},
	{
		name:  "user_wins",
		why:   "A container of the user's with the sidecar's name is how users change the sidecar: it is merged over the driver's, so that there is one container of the name, with every field that the user set and the driver's for the rest.",
		check: patchUserWins,
	},
	{
		name:  "valid",
		why:   "The API server accepts the patched pod: names are unique and of the right form, every mount has its volume, a probe has one handler, and so on. What it refuses here, it would refuse of every pod of the class.",
		check: patchValid,
	},
	{
		name:  "restricted",
		why:   "Every container that Patch adds satisfies the Pod Security level restricted by its own securityContext, so that a mesh does not lower the level of a namespace. The one exception is an init container that prepares the pod: it may run as root and add NET_ADMIN, and be privileged where Sidecar.PrivilegedInit asks for that. With Sidecar.CNI it has no such need.",
		check: patchRestricted,
	},
	{
		name:  "no_secret",
		why:   "Nothing that Patch adds holds a private key or refers to a Secret. A workload's key is born in its pod, by the agent, and never leaves it.",
		check: patchNoSecret,
	},
	{
		name:  "ports",
		why:   "The ports that Patch declares are not the app's, by number or by name, or a Service would reach the sidecar in its place. They are not ports of the node, and the proxy's admin port, which is for loopback only, is not declared.",
		check: patchPorts,
	},
	{
		name:  "agent",
		why:   "Exactly one container that Patch adds tells the agent what to do, in OUTRIGGER_AGENT: a whole agentspec.Spec with the probes of the InjectorContext, files that lie on volumes it can write to, and no ${NAME} that the container does not set. Its identity lies on a volume in memory.",
		check: patchAgent,
	},
	{
		name:  "windows",
		why:   "In a pod of Windows, Patch adds no field that the API server refuses there, no volume in memory and no redirection, which Windows does not have.",
		check: patchWindows,
	},
	{
		name:  "offline",
		why:   "Offline injection has no cluster and no admission request: KubeClient is nil, ProxyUUID is zero, and the BootstrapCertificate has no bundle. Patch works without them.",
		check: patchOffline,
	},
	{
		name:  "no_side_effects",
		why:   "Patch writes nothing to the cluster (the webhook is registered with sideEffects: None), changes no argument but the pod, and gives the same pod in a dry run as in a real one.",
		check: patchNoSideEffects,
	},
	{
		name:  "huge",
		why:   "The cost of Patch is in proportion to the pod. A pod with 2,000 env vars is patched in a small part of the time that an admission may take.",
		check: patchHuge,
	},
	{
		name:  "scalars",
		why:   "What a user writes into an annotation or a name comes out as the text of one field, whatever it holds: a newline, quotes, braces, a colon. Else whoever may create a pod could write any field of the sidecar.",
		check: patchScalars,
	},
	{
		name:  "template",
		why:   "A driver with a PodTemplate says the same text each time, and its Patch uses the template of the user's in its place where InjectorContext.Templates has one.",
		check: patchTemplate,
	},
}
