// Package publish publishes what package root decides: the trust bundle in ConfigMaps or a
// file, the status of MeshRootCertificates, and the certificate of an ingress gateway. It
// decides nothing.
package publish

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	crsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/certificate"
	"github.com/outrigger-mesh/outrigger/internal/identity/store"
)

const (
	// bundleName is the name of the ConfigMap with the trust bundle, bundleKey its only key,
	// and BundleFile the corresponding file in the CA's folder.
	bundleName = "outrigger-ca"
	bundleKey  = "ca.crt"
	BundleFile = "bundle.crt"

	// managedByLabel is the label of the ConfigMaps; managedBy is its value.
	managedByLabel = "app.kubernetes.io/managed-by"
	managedBy      = "outrigger-controller"

	// filePeriod is how often the file is checked for changes.
	filePeriod = 500 * time.Millisecond
)

// AddBundle adds a controller to a manager that maintains the trust bundle in the ConfigMap
// outrigger-ca of each namespace of the mesh: it is created, restored after changes, and
// deleted when its namespace leaves the mesh. It is identified by its name only, because
// pods mount the ConfigMap of that name whoever created it.
//
// The manager's cache must contain Namespaces. Its user needs create on ConfigMaps of every
// namespace, and get, list, watch, update and delete on those with this name.
func AddBundle(mgr manager.Manager, roots certificate.Manager, meshName string, log *slog.Logger) error {
	set, err := kubernetes.NewForConfig(mgr.GetConfig())
	if err != nil {
		return fmt.Errorf("creating a client for the trust bundle: %w", err)
	}
	b := &bundles{
		namespaces: mgr.GetClient(), client: set, roots: roots, meshName: meshName, log: log,
		informer: coreinformers.NewFilteredConfigMapInformer(set, metav1.NamespaceAll, 0, cache.Indexers{}, func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, bundleName).String()
		}),
	}
	err = builder.ControllerManagedBy(mgr).
		Named("trust-bundle").
		For(&corev1.Namespace{}).
		WatchesRawSource(&crsource.Informer{Informer: b.informer, Handler: handler.EnqueueRequestsFromMapFunc(
			func(_ context.Context, configMap client.Object) []reconcile.Request {
				return []reconcile.Request{request(configMap.GetNamespace())}
			})}).
		WatchesRawSource(crsource.Func(b.start)).
		Complete(b)
	if err != nil {
		return fmt.Errorf("adding the controller of the trust bundle: %w", err)
	}
	return nil
}

// bundles maintains the ConfigMaps. Requests name namespaces.
type bundles struct {
	namespaces client.Client
	client     kubernetes.Interface
	roots      certificate.Manager
	meshName   string
	log        *slog.Logger
	informer   cache.SharedIndexInformer
}

// start watches the ConfigMaps and the trust bundle until ctx ends.
func (b *bundles) start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	changed := b.roots.TrustBundleChanged(ctx.Done())
	_ = b.informer.SetWatchErrorHandlerWithContext(store.WatchErrors(b.log.With("configMap", bundleName))) // It only fails once the informer runs.
	_ = b.informer.SetTransform(func(obj any) (any, error) {
		if found, ok := obj.(*corev1.ConfigMap); ok {
			found.ManagedFields = nil
		}
		return obj, nil
	})
	go b.informer.RunWithContext(ctx)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
				b.enqueueAll(ctx, queue)
			}
		}
	}()
	return nil
}

func request(namespace string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: namespace}}
}

// enqueueAll enqueues every namespace of the mesh.
func (b *bundles) enqueueAll(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	var list corev1.NamespaceList
	if err := b.namespaces.List(ctx, &list, client.MatchingLabels{metadata.MonitoredBy: b.meshName}); err != nil {
		if ctx.Err() == nil {
			b.log.Error("cannot publish the changed trust bundle", "error", err)
		}
		return
	}
	for i := range list.Items {
		queue.Add(request(list.Items[i].Name))
	}
}

// Reconcile creates, updates or deletes the ConfigMap of one namespace.
func (b *bundles) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var namespace corev1.Namespace
	if err := b.namespaces.Get(ctx, client.ObjectKey{Name: req.Name}, &namespace); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if namespace.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	found, err := b.find(ctx, req.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	if namespace.Labels[metadata.MonitoredBy] != b.meshName {
		return reconcile.Result{}, b.remove(ctx, found)
	}
	wanted := string(b.roots.TrustBundle())
	switch {
	case wanted == "":
		// The first bundle causes another request.
		return reconcile.Result{}, nil
	case found == nil:
		_, err := b.client.CoreV1().ConfigMaps(req.Name).Create(ctx, b.configMap(req.Name, wanted), metav1.CreateOptions{})
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err) {
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, b.wrap("creating", req.Name, err)
	case b.isCurrent(found, wanted):
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, b.update(ctx, found, wanted)
}

// isCurrent reports whether a ConfigMap equals the desired one, ignoring annotations and
// further labels.
func (b *bundles) isCurrent(found *corev1.ConfigMap, wanted string) bool {
	return len(found.Data) == 1 && found.Data[bundleKey] == wanted && len(found.BinaryData) == 0 && !isImmutable(found) &&
		found.Labels[managedByLabel] == managedBy && found.Labels[metadata.MonitoredBy] == b.meshName &&
		len(found.Finalizers)+len(found.OwnerReferences) == 0
}

// update updates a ConfigMap. An immutable one is deleted and later created again.
func (b *bundles) update(ctx context.Context, found *corev1.ConfigMap, wanted string) error {
	updated := found.DeepCopy()
	if updated.Labels == nil {
		updated.Labels = make(map[string]string)
	}
	updated.Labels[managedByLabel], updated.Labels[metadata.MonitoredBy] = managedBy, b.meshName
	// Either would let others control its deletion.
	updated.Finalizers, updated.OwnerReferences = nil, nil
	if !isImmutable(found) {
		updated.Data, updated.BinaryData = map[string]string{bundleKey: wanted}, nil
	}
	updated, err := b.client.CoreV1().ConfigMaps(found.Namespace).Update(ctx, updated, metav1.UpdateOptions{})
	if err == nil && isImmutable(updated) {
		return b.remove(ctx, updated) // The delete event causes another request.
	}
	return b.wrap("changing", found.Namespace, err)
}

func isImmutable(found *corev1.ConfigMap) bool { return found.Immutable != nil && *found.Immutable }

func (b *bundles) configMap(namespace, bundle string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: bundleName,
			Labels: map[string]string{managedByLabel: managedBy, metadata.MonitoredBy: b.meshName},
		},
		Data: map[string]string{bundleKey: bundle},
	}
}

// find returns the ConfigMap of a namespace, or nil.
func (b *bundles) find(ctx context.Context, namespace string) (*corev1.ConfigMap, error) {
	if b.informer.HasSynced() {
		obj, ok, err := b.informer.GetStore().GetByKey(namespace + "/" + bundleName)
		found, is := obj.(*corev1.ConfigMap)
		if err == nil && ok && is {
			return found, nil
		}
		return nil, err
	}
	found, err := b.client.CoreV1().ConfigMaps(namespace).Get(ctx, bundleName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return found, b.wrap("reading", namespace, err)
}

// remove deletes a ConfigMap that belongs to this mesh, unless it has changed since it was
// read.
func (b *bundles) remove(ctx context.Context, found *corev1.ConfigMap) error {
	if found == nil || found.Labels[managedByLabel] != managedBy || found.Labels[metadata.MonitoredBy] != b.meshName {
		return nil
	}
	err := b.client.CoreV1().ConfigMaps(found.Namespace).Delete(ctx, found.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &found.UID, ResourceVersion: &found.ResourceVersion},
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return b.wrap("deleting", found.Namespace, err)
}

// wrap adds context to an error. It drops errors that only mean that the informer is
// behind: an event will follow.
func (b *bundles) wrap(doing, namespace string, err error) error {
	if err == nil || b.informer.HasSynced() && (apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)) {
		return nil
	}
	return fmt.Errorf("%s ConfigMap %s/%s: %w", doing, namespace, bundleName, err)
}

// PublishFile maintains the trust bundle in the file bundle.crt of a folder until ctx ends.
// The file is replaced atomically and restored after changes.
func PublishFile(ctx context.Context, roots certificate.Manager, dir string, log *slog.Logger) {
	path := filepath.Join(dir, BundleFile)
	changed := roots.TrustBundleChanged(ctx.Done())
	ticker := time.NewTicker(filePeriod)
	defer ticker.Stop()
	var logged string
	for {
		err := publishFile(path, roots.TrustBundle())
		if err != nil && err.Error() != logged {
			log.Error("cannot publish the trust bundle", "error", err)
			logged = err.Error()
		} else if err == nil {
			logged = ""
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-ticker.C:
		}
	}
}

func publishFile(path string, bundle []byte) error {
	if len(bundle) == 0 {
		return nil
	}
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, bundle) {
		return nil
	}
	return store.WriteFile(path, bundle, 0o644)
}
