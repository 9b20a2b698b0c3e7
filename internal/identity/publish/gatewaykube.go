package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/certificate"
	"github.com/outrigger-mesh/outrigger/internal/audit"
	"github.com/outrigger-mesh/outrigger/internal/identity/root"
	"github.com/outrigger-mesh/outrigger/internal/identity/store"
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
func AddGateway(mgr manager.Manager, roots *root.Roots, trust certificate.Manager, facts *kube.Source, log *slog.Logger) error {
	set, err := kubernetes.NewForConfig(mgr.GetConfig())
	if err != nil {
		return fmt.Errorf("creating a client for the ingress gateway's certificate: %w", err)
	}
	c, err := client.New(mgr.GetConfig(), client.Options{Scheme: kube.Scheme(), Mapper: mapper()})
	if err != nil {
		return fmt.Errorf("creating a client for the ingress gateway's certificate: %w", err)
	}
	g := &gateway{
		roots: roots, trust: trust, facts: facts, secrets: gatewaySecrets{store.KubeSecrets{Client: set, Rights: "get and update it"}},
		client: c, events: mgr.GetClient(), log: log,
	}
	// Only the leader runs it.
	if err := builder.ControllerManagedBy(mgr).Named("ingress-gateway-certificate").WatchesRawSource(crsource.Func(g.start)).Complete(g); err != nil {
		return fmt.Errorf("adding the controller of the ingress gateway's certificate: %w", err)
	}
	return nil
}

func gatewaySpec(config *v1alpha2.MeshConfig) *v1alpha2.IngressGatewayCertSpec {
	if config == nil {
		return nil
	}
	return config.Spec.Certificate.IngressGateway
}

// gatewaySecrets stores the gateway's certificate in a Secret of any namespace.
type gatewaySecrets struct{ store.KubeSecrets }

// gatewayMark is the annotation of the Secret that the controller filled.
const gatewayMark = "openservicemesh.io/ingress-gateway-certificate"

// get returns a Secret and whether the controller filled it. The error wraps store.ErrNotFound if
// there is none.
func (s gatewaySecrets) get(ctx context.Context, ref root.SecretRef) (secret store.Secret, ours bool, err error) {
	found, err := s.Read(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return store.Secret{}, false, err
	}
	return store.SecretOf(found), found.Annotations[gatewayMark] != "", nil
}

// put fills or changes the Secret that get returned, of any type. The error wraps
// store.ErrConflict if it has changed since.
func (s gatewaySecrets) put(ctx context.Context, ref root.SecretRef, old store.Secret, data map[string][]byte) error {
	return s.Update(ctx, ref.Namespace, ref.Name, old, func(found *corev1.Secret) {
		metav1.SetMetaDataAnnotation(&found.ObjectMeta, gatewayMark, "true")
		found.Data = data
	})
}

// clear empties a Secret that the controller filled. It does nothing for other or missing
// Secrets.
func (s gatewaySecrets) clear(ctx context.Context, ref root.SecretRef) error {
	secret, ours, err := s.get(ctx, ref)
	if errors.Is(err, store.ErrNotFound) || err == nil && !ours {
		return nil
	}
	if err != nil {
		return err
	}
	return s.Update(ctx, ref.Namespace, ref.Name, secret, func(found *corev1.Secret) {
		delete(found.Annotations, gatewayMark)
		found.Data = nil
		if found.Type == corev1.SecretTypeTLS {
			// The type requires the keys.
			found.Data = map[string][]byte{corev1.TLSCertKey: nil, corev1.TLSPrivateKeyKey: nil}
		}
	})
}

// report writes the condition if it has changed.
func (g *gateway) report(ctx context.Context, wanted bool, failure error) error {
	cached := g.facts.MeshConfig()
	if cached == nil {
		return nil
	}
	condition := metav1.Condition{
		Type: ConditionGateway, Status: metav1.ConditionTrue, Reason: "Issued", Message: "the Secret contains a valid certificate", ObservedGeneration: cached.Generation,
	}
	if failure != nil {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, root.ReasonUnavailable, gatewayField+": "+failure.Error()
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
