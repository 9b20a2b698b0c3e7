package root

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/certificate"
	"github.com/outrigger-mesh/outrigger/internal/audit"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
)

const (
	// ConditionGateway, on the MeshConfig, is True while the ingress gateway has the desired
	// certificate. It is absent if the MeshConfig asks for none.
	ConditionGateway = "IngressGatewayCertificate"

	gatewayField = "spec.certificate.ingressGateway"
)

// AddGateway makes a manager maintain the ingress gateway's certificate that the MeshConfig
// asks for and report failures in a condition of the MeshConfig and in Warning Events. Its
// user needs get and update on the Secret that the MeshConfig names, get on the MeshConfig
// and update on its status.
func AddGateway(mgr manager.Manager, roots *Roots, trust certificate.Manager, facts *kube.Source, log *slog.Logger) error {
	set, err := kubernetes.NewForConfig(mgr.GetConfig())
	if err != nil {
		return fmt.Errorf("creating a client for the ingress gateway's certificate: %w", err)
	}
	c, err := client.New(mgr.GetConfig(), client.Options{Scheme: kube.Scheme(), Mapper: rootMapper()})
	if err != nil {
		return fmt.Errorf("creating a client for the ingress gateway's certificate: %w", err)
	}
	// Only the leader runs it.
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		if err := facts.WaitForSync(ctx); err != nil {
			return nil // It fails only when ctx has ended.
		}
		reporter := &gatewayReporter{client: c, events: mgr.GetClient(), facts: facts, log: log, wake: make(chan struct{}, 1)}
		g := &gateway{
			roots: roots, secrets: gatewaySecrets{kubeSecrets{set, "get and update it"}},
			spec:   func() *v1alpha2.IngressGatewayCertSpec { return gatewaySpec(facts.MeshConfig()) },
			report: reporter.set, log: log, changed: make(chan struct{}, 1),
		}
		facts.OnMeshConfig(func(*v1alpha2.MeshConfig) { g.trigger(); reporter.trigger() })
		changed := trust.TrustBundleChanged(ctx.Done())
		var running sync.WaitGroup
		running.Go(func() { g.run(ctx) })
		running.Go(func() { reporter.run(ctx) })
		running.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-changed:
					g.trigger()
				}
			}
		})
		running.Wait()
		return nil
	}))
}

func gatewaySpec(config *v1alpha2.MeshConfig) *v1alpha2.IngressGatewayCertSpec {
	if config == nil {
		return nil
	}
	return config.Spec.Certificate.IngressGateway
}

// gatewaySecrets stores the gateway's certificate in a Secret of any namespace.
type gatewaySecrets struct{ kubeSecrets }

// gatewayMark is the annotation of the Secret that the controller filled.
const gatewayMark = "openservicemesh.io/ingress-gateway-certificate"

// get returns a Secret and whether the controller filled it. The error wraps ErrNotFound if
// there is none.
func (s gatewaySecrets) get(ctx context.Context, ref secretRef) (secret Secret, ours bool, err error) {
	found, err := s.read(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return Secret{}, false, err
	}
	return newSecret(found), found.Annotations[gatewayMark] != "", nil
}

// put fills or changes the Secret that get returned, of any type. The error wraps
// ErrConflict if it has changed since.
func (s gatewaySecrets) put(ctx context.Context, ref secretRef, old Secret, data map[string][]byte) error {
	return s.update(ctx, ref.Namespace, ref.Name, old, func(found *corev1.Secret) {
		metav1.SetMetaDataAnnotation(&found.ObjectMeta, gatewayMark, "true")
		found.Data = data
	})
}

// clear empties a Secret that the controller filled. It does nothing for other or missing
// Secrets.
func (s gatewaySecrets) clear(ctx context.Context, ref secretRef) error {
	secret, ours, err := s.get(ctx, ref)
	if errors.Is(err, ErrNotFound) || err == nil && !ours {
		return nil
	}
	if err != nil {
		return err
	}
	return s.update(ctx, ref.Namespace, ref.Name, secret, func(found *corev1.Secret) {
		delete(found.Annotations, gatewayMark)
		found.Data = nil
		if found.Type == corev1.SecretTypeTLS {
			// The type requires the keys.
			found.Data = map[string][]byte{keyTLSCert: nil, keyTLSKey: nil}
		}
	})
}

// gatewayReporter reports the state of the gateway's certificate. set and trigger are called
// from other goroutines than run.
type gatewayReporter struct {
	client, events client.Client
	facts          *kube.Source
	log            *slog.Logger
	wake           chan struct{}

	mu      sync.Mutex
	known   bool
	wanted  bool
	failure error
}

func (g *gatewayReporter) set(wanted bool, failure error) {
	g.mu.Lock()
	g.known, g.wanted, g.failure = true, wanted, failure
	g.mu.Unlock()
	g.trigger()
}

func (g *gatewayReporter) trigger() { notify(g.wake) }

func (g *gatewayReporter) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.wake:
		}
		for ctx.Err() == nil {
			err := g.writeCondition(ctx)
			if err == nil || ctx.Err() != nil {
				break
			}
			if !apierrors.IsConflict(err) {
				g.log.Error("cannot write the MeshConfig's condition for the ingress gateway's certificate; retrying", "error", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(retryDelay(err)):
			}
		}
	}
}

// writeCondition writes the condition if it has changed.
func (g *gatewayReporter) writeCondition(ctx context.Context) error {
	g.mu.Lock()
	known, wanted, failure := g.known, g.wanted, g.failure
	g.mu.Unlock()
	cached := g.facts.MeshConfig()
	if !known || cached == nil {
		return nil
	}
	condition := metav1.Condition{
		Type: ConditionGateway, Status: metav1.ConditionTrue, Reason: "Issued", Message: "the Secret contains a valid certificate", ObservedGeneration: cached.Generation,
	}
	if failure != nil {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, ReasonUnavailable, gatewayField+": "+failure.Error()
	}
	updated := cached.DeepCopy()
	if changed := setCondition(&updated.Status.Conditions, condition, wanted); !changed {
		return nil
	}
	if failure != nil {
		about := corev1.ObjectReference{
			APIVersion: v1alpha2.SchemeGroupVersion.String(), Kind: "MeshConfig", Namespace: cached.Namespace, Name: cached.Name, UID: cached.UID,
		}
		if err := audit.Warn(ctx, g.events, about, condition.Reason, fmt.Sprint(cached.Generation, condition.Message), condition.Message); err != nil {
			return err
		}
	}
	// The cached object may be incomplete or outdated.
	var now v1alpha2.MeshConfig
	if err := g.client.Get(ctx, client.ObjectKeyFromObject(cached), &now); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !setCondition(&now.Status.Conditions, condition, wanted) {
		return nil
	}
	return client.IgnoreNotFound(g.client.Status().Update(ctx, &now))
}

func setCondition(conditions *[]metav1.Condition, condition metav1.Condition, wanted bool) (changed bool) {
	if !wanted {
		return meta.RemoveStatusCondition(conditions, condition.Type)
	}
	return meta.SetStatusCondition(conditions, condition)
}

func retryDelay(err error) time.Duration {
	if apierrors.IsConflict(err) {
		return conflictDelay
	}
	return retryInterval
}
