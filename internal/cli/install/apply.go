package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/action"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/kube"
	rcommon "helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	semver "k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"

	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// madeByLabel is on a namespace that 'outrigger install' has created, and that 'outrigger
// uninstall' may therefore delete.
const (
	madeByLabel = "app.kubernetes.io/managed-by"
	madeBy      = "outrigger"
)

// meshConfigName is the name of the chart's MeshConfig.
const meshConfigName = "osm-mesh-config"

// maxHistory is the number of revisions of a release that are kept, as in Helm.
const maxHistory = 10

// applyOptions are the flags of 'outrigger install' and 'outrigger upgrade'.
type applyOptions struct {
	valueFlags
	clusterFlags
	upgrade                                    bool
	wait, dryRun, atomic, force                bool
	forceConflicts, takeOwnership, resetValues bool
	reuseValues                                bool
	timeout                                    time.Duration
	output                                     string
}

// application is one installation or upgrade.
type application struct {
	*applyOptions
	*target
	revision string
	release  string
	values   map[string]any
	chart    *chartv2.Chart
	// last is the current release, or nil.
	last *release.Release
	// rendered is the rendered chart, and objects are its parsed objects.
	rendered *chart.Release
	objects  []*unstructured.Unstructured
}

func (o *applyOptions) run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) error {
	if !slices.Contains([]string{"", "name", "json", "yaml"}, o.output) {
		return usage.Errorf("-o %q: formats are name, json and yaml", o.output)
	}
	if o.timeout <= 0 {
		return usage.Errorf("--timeout %s: give a time such as 5m", o.timeout)
	}
	values, err := o.read(stdin)
	if err != nil {
		return err
	}
	namespace := o.namespace
	if own, _, _ := unstructured.NestedString(values, "osm", "osmNamespace"); own != "" {
		namespace = own
	}
	t, err := newTarget(o.clusterFlags, namespace, stderr)
	if err != nil {
		return err
	}
	a := &application{applyOptions: o, target: t, values: values, revision: revisionOf(values)}
	a.release = releaseName(a.revision)
	if a.chart, err = chart.Load(); err != nil {
		return err
	}
	began := time.Now()
	if err := a.preflight(ctx); err != nil {
		return err
	}
	if err := a.render(ctx); err != nil {
		return err
	}
	if o.dryRun {
		return a.preview(ctx, stdout)
	}
	done, err := a.apply(ctx)
	if err != nil {
		return err
	}
	a.say("%s %s is installed in namespace %s (%s)", a.release, a.chart.AppVersion(), a.namespace, time.Since(began).Round(100*time.Millisecond))
	return a.report(stdout, done)
}

// preflight returns an error for everything that can be detected before a change.
func (a *application) preflight(ctx context.Context) error {
	if err := a.reachable(); err != nil {
		return err
	}
	if err := a.allowed(ctx, installRights(a.dryRun)); err != nil {
		return err
	}
	var err error
	if a.last, err = a.target.last(a.release); err != nil {
		return err
	}
	if a.last != nil && a.last.Info.Status.IsPending() && !a.dryRun {
		if err := a.unlock(); err != nil {
			return err
		}
	}
	if a.upgrade {
		return a.mayUpgrade(ctx)
	}
	return a.mayInstall(ctx)
}

// unlock marks a pending release, whose installation was killed, as failed. With --force the
// user confirms that no other program works on it.
func (a *application) unlock() error {
	if !a.force {
		return usage.Refusalf("the release %s is %s since %s: wait until that has finished, or give --force if the program that did it is not running any more",
			a.release, a.last.Info.Status, a.last.Info.LastDeployed.Format(time.RFC3339))
	}
	a.last.SetStatus(rcommon.StatusFailed, "abandoned by outrigger --force")
	return a.helm.Releases.Update(a.last)
}

func (a *application) mayInstall(ctx context.Context) error {
	if a.last != nil {
		if a.last.Info.Status == rcommon.StatusDeployed {
			return usage.Refusalf("the release %s %s is already installed in namespace %s; change it with 'outrigger upgrade'", a.release, a.last.Chart.AppVersion(), a.namespace)
		}
		a.say("the release %s is %s: repairing it", a.release, a.last.Info.Status)
		return nil
	}
	if a.revision != defaultRevision {
		controller, err := a.exists(ctx, named("apps/v1", "Deployment", a.namespace, "outrigger-controller"))
		if err != nil {
			return err
		}
		if controller == nil {
			return usage.Refusalf("revision %s is another injector for an installed mesh, and no mesh is installed in namespace %s: run 'outrigger install' without --revision first, or name its namespace with -n", a.revision, a.namespace)
		}
	}
	there, err := a.exists(ctx, named("apps/v1", "Deployment", a.namespace, inject.ObjectName(a.revision)))
	if err != nil {
		return err
	}
	if there != nil && !a.takeOwnership {
		return usage.Refusalf("%s exists already and does not belong to a Helm release: keep using 'outrigger manifests | kubectl apply', or make it part of a release with --take-ownership", title(there))
	}
	return a.keepForeignMeshConfig(ctx)
}

// keepForeignMeshConfig does not install a MeshConfig if there is one that belongs to no release
// of the chart, such as Open Service Mesh's.
func (a *application) keepForeignMeshConfig(ctx context.Context) error {
	if a.revision != defaultRevision || a.takeOwnership {
		return nil
	}
	found, err := a.exists(ctx, named("config.openservicemesh.io/v1alpha2", "MeshConfig", a.namespace, meshConfigName))
	if err != nil || found == nil || found.GetAnnotations()["meta.helm.sh/release-name"] == a.release {
		return err
	}
	if create, set, _ := unstructured.NestedBool(a.values, "meshConfig", "create"); set && create {
		return usage.Refusalf("%s exists already and does not belong to this release: leave out meshConfig.create to keep it unchanged, or make it part of the release with --take-ownership", title(found))
	}
	a.say("%s exists already and is not changed (meshConfig.create=false), so values for it have no effect", title(found))
	a.values = loader.MergeMaps(a.values, map[string]any{"meshConfig": map[string]any{"create": false}})
	return nil
}

func (a *application) mayUpgrade(ctx context.Context) error {
	if a.last == nil {
		there, err := a.exists(ctx, named("apps/v1", "Deployment", a.namespace, inject.ObjectName(a.revision)))
		if err != nil {
			return err
		}
		if there != nil {
			return usage.Refusalf("%s does not belong to a Helm release: upgrade it as it was installed, with 'outrigger manifests | kubectl apply', or make it part of a release with 'outrigger install --take-ownership'", title(there))
		}
		return usage.Refusalf("release %s does not exist in namespace %s: run 'outrigger install', or name its namespace with -n", a.release, a.namespace)
	}
	if err := supported(a.last.Chart.AppVersion(), a.chart.AppVersion()); err != nil {
		if !a.force {
			return err
		}
		a.say("continuing because of --force: %v", err)
	}
	if !a.resetValues {
		a.values = loader.MergeMaps(a.last.Config, a.values)
	}
	return nil
}

// supported returns an error for untested changes of the version: by more than one minor
// version, up or down.
func supported(from, to string) error {
	old, err := semver.ParseSemantic(from)
	if err != nil {
		return fmt.Errorf("the version of the release: %w", err)
	}
	next, err := semver.ParseSemantic(to)
	if err != nil {
		return fmt.Errorf("the version of this program: %w", err)
	}
	apart := int(next.Minor()) - int(old.Minor())
	if old.Major() == next.Major() && apart >= -1 && apart <= 1 {
		return nil
	}
	way := fmt.Sprintf("first change to %d.%d, with the program of that version", old.Major(), old.Minor()+1)
	if next.LessThan(old) {
		way = fmt.Sprintf("first change to %d.%d, with the program of that version", old.Major(), max(old.Minor(), 1)-1)
	}
	if old.Major() != next.Major() {
		way = "read the notes of the release on the way between major versions"
	}
	return usage.Refusalf("the change from %s to %s is more than one minor version: %s", from, to, way)
}

// render renders the chart before anything is changed, since the chart may refuse the values.
func (a *application) render(ctx context.Context) error {
	var err error
	if a.rendered, err = chart.RenderChart(ctx, a.chart, a.namespace, a.values); err != nil {
		return err
	}
	a.objects = nil
	for _, text := range a.rendered.Objects {
		obj := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &obj.Object); err != nil {
			return fmt.Errorf("reading an object of the chart: %w", err)
		}
		if len(obj.Object) > 0 {
			a.objects = append(a.objects, obj)
		}
	}
	return nil
}

// apply changes the cluster.
func (a *application) apply(ctx context.Context) (*release.Release, error) {
	if err := a.applyCRDs(ctx, a.rendered.CRDs, a.chart.AppVersion(), false); err != nil {
		return nil, err
	}
	if err := a.makeNamespace(ctx); err != nil {
		return nil, err
	}
	if a.takeOwnership {
		if err := a.disown(ctx); err != nil {
			return nil, err
		}
	}
	if !a.forceConflicts {
		if err := a.keepChanges(ctx); err != nil {
			return nil, err
		}
	}
	a.say("applying %d objects", len(a.objects))
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	seen := make(chan struct{})
	go func() {
		defer close(seen)
		if a.wait {
			a.watch(waiting)
		}
	}()
	done, err := a.runHelm(ctx)
	stop()
	<-seen
	if err != nil {
		return nil, a.explain(ctx, err)
	}
	if a.wait {
		a.say("everything is ready")
	}
	return done, nil
}

func (a *application) makeNamespace(ctx context.Context) error {
	found, err := a.kube.CoreV1().Namespaces().Get(ctx, a.namespace, metav1.GetOptions{})
	if err == nil && found.DeletionTimestamp != nil {
		a.say("Namespace %s: it is being deleted; waiting until it is gone", a.namespace)
		waiting, cancel := context.WithTimeout(ctx, a.timeout)
		defer cancel()
		if err := a.namespaceGone(waiting); err != nil {
			return err
		}
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.namespace, Labels: map[string]string{madeByLabel: madeBy}}}
	_, err = a.kube.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{FieldManager: crdManager})
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil
	case err != nil:
		return fmt.Errorf("creating namespace %s: %w", a.namespace, err)
	}
	a.say("Namespace %s: created", a.namespace)
	return nil
}

// runHelm installs or upgrades the release.
func (a *application) runHelm(ctx context.Context) (*release.Release, error) {
	strategy := kube.HookOnlyStrategy
	if a.wait {
		strategy = kube.StatusWatcherStrategy
	}
	options := []kube.WaitOption{kube.WithWaitContext(ctx)}
	if a.last == nil {
		do := action.NewInstall(a.helm)
		do.ReleaseName, do.Namespace, do.SkipCRDs = a.release, a.namespace, true
		do.WaitStrategy, do.WaitOptions, do.Timeout = strategy, options, a.timeout
		do.TakeOwnership, do.ForceConflicts = a.takeOwnership, a.forceConflicts || a.takeOwnership
		return asRelease(do.RunWithContext(ctx, a.chart, a.values))
	}
	do := action.NewUpgrade(a.helm)
	do.Namespace, do.SkipCRDs, do.ResetValues, do.MaxHistory = a.namespace, true, true, maxHistory
	do.WaitStrategy, do.WaitOptions, do.Timeout = strategy, options, a.timeout
	do.ForceConflicts, do.TakeOwnership = a.forceConflicts || a.takeOwnership, a.takeOwnership
	do.ServerSideApply = "true"
	do.RollbackOnFailure = a.upgrade && a.atomic
	return asRelease(do.RunWithContext(ctx, a.release, a.chart, a.values))
}

func asRelease(found any, err error) (*release.Release, error) {
	rel, _ := found.(*release.Release)
	if err == nil && rel == nil {
		err = errors.New("no release was returned by Helm")
	}
	return rel, err
}

// explain adds to an error which parts are not ready, why, and what to do.
func (a *application) explain(ctx context.Context, err error) error {
	// The context of the installation may have ended.
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var lines []string
	for _, p := range a.progress(asking) {
		if !p.ready {
			lines = append(lines, "\n  "+p.String())
		}
	}
	command := "install"
	if a.upgrade {
		command = "upgrade"
	}
	state := "no release was created"
	if last, lastErr := a.target.last(a.release); lastErr == nil && last != nil {
		state = fmt.Sprintf("the release %s is in namespace %s, at revision %d, with the status %s", a.release, a.namespace, last.Version, last.Info.Status)
	}
	return fmt.Errorf("%w%s\n%s; remove the cause and run 'outrigger %s' again, or remove the mesh with 'outrigger uninstall'", err, strings.Join(lines, ""), state, command)
}
