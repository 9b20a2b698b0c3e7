package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

const (
	controlPlane = "osm-system"
	// learnedServices is the ConfigMap with what the pods of a namespace have used.
	learnedServices = "outrigger-learned-services"
	// perNamespace is how many services a namespace has.
	perNamespace = 100
	// endpoints is how many pods a service has.
	endpoints = 10
	// maxPods is the room for addresses of a service's pods.
	maxPods = 128
	// maxCallees is how many services each identity may call, if policies decide.
	maxCallees = 20
	port       = 8080
	// writers is how many requests to the API server there are at once.
	writers = 32
)

// city is what the API server contains: services with pods, whose proxies are of two classes.
type city struct {
	client     client.Client
	kubernetes kubernetes.Interface
	services   int
	// policies says that policies decide which services an identity may call, and istio that
	// there are also those of Istio.
	policies, istio bool
	// onDemand says that each identity has used the services that policies would let it call,
	// and that its proxies know no others.
	onDemand bool
}

func newCity(config *rest.Config, services int, mode string, istio bool) (*city, error) {
	c := &city{services: services, policies: mode == modePolicy, onDemand: mode == modeOnDemand, istio: istio}
	var err error
	if c.client, err = client.New(config, client.Options{Scheme: kube.Scheme()}); err != nil {
		return nil, err
	}
	binary := rest.CopyConfig(config)
	binary.ContentType = "application/vnd.kubernetes.protobuf"
	c.kubernetes, err = kubernetes.NewForConfig(binary)
	return c, err
}

func namespaceOf(service int) string  { return fmt.Sprintf("city-%d", service/perNamespace) }
func serviceName(service int) string  { return fmt.Sprintf("shop-%d", service) }
func podName(service, pod int) string { return fmt.Sprintf("shop-%d-%d", service, pod) }

// addressOf returns the address of a pod.
func addressOf(service, pod int) string {
	n := uint32(10)<<24 | 64<<16 + uint32(service*maxPods+pod) + 1
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}).String()
}

// build creates all objects.
func (c *city) build(ctx context.Context) error {
	for i := 0; i < c.services; i += perNamespace {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name:        namespaceOf(i),
			Labels:      map[string]string{metadata.MonitoredBy: "osm", "istio-injection": "enabled"},
			Annotations: map[string]string{"openservicemesh.io/sidecar-injection": "enabled"},
		}}
		if err := c.client.Create(ctx, namespace); err != nil {
			return err
		}
		if c.onDemand {
			if err := c.learn(ctx, namespace, i); err != nil {
				return err
			}
		}
		if !c.policies {
			continue
		}
		if err := c.apply(ctx, fmt.Sprintf(`
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: all, namespace: %s}
spec: {matches: [{name: all, pathRegex: .*, methods: ['*']}]}
`, namespaceOf(i))); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range c.services {
		group.Go(func() error { return c.createService(ctx, i) })
	}
	return group.Wait()
}

// learn makes the services of a namespace begin with what they have used, as the controller
// keeps it.
func (c *city) learn(ctx context.Context, namespace *corev1.Namespace, first int) error {
	used := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: learnedServices, Namespace: namespace.Name}, Data: map[string]string{}}
	for service := first; service < min(first+perNamespace, c.services); service++ {
		var lines strings.Builder
		for _, callee := range calleesOf(service, c.services) {
			fmt.Fprintf(&lines, "%s/%s\n", namespaceOf(callee), serviceName(callee))
		}
		used.Data[serviceName(service)] = lines.String()
	}
	namespace.Annotations["openservicemesh.io/outbound-services"] = "on-demand"
	return errors.Join(c.client.Update(ctx, namespace), c.client.Create(ctx, used))
}

func (c *city) createService(ctx context.Context, service int) error {
	namespace, name := namespaceOf(service), serviceName(service)
	core := c.kubernetes.CoreV1()
	if _, err := core.ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	for pod := range endpoints {
		if err := c.createPod(ctx, service, pod); err != nil {
			return err
		}
	}
	_, err := core.Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if _, err := c.kubernetes.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice(service, firstPods(endpoints)), metav1.CreateOptions{}); err != nil {
		return err
	}
	if !c.policies {
		return nil
	}
	texts := []string{target(service, "", callersOf(service, c.services)...)}
	if c.istio {
		texts = append(texts, authorization(service, "", callersOf(service, c.services)...), visibility(service, calleesOf(service, c.services)...))
	}
	return c.apply(ctx, texts...)
}

// classOf returns the class of a pod's proxy.
func classOf(pod int) string {
	if pod%2 == 1 {
		return "pipy"
	}
	return "envoy"
}

// createPod creates a pod and its status as the kubelet would.
func (c *city) createPod(ctx context.Context, service, number int) error {
	namespace, name := namespaceOf(service), serviceName(service)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: podName(service, number), Labels: map[string]string{"app": name, "security.istio.io/tlsMode": "istio"},
			Annotations: map[string]string{inject.StatusAnnotation: fmt.Sprintf(`{"version":1,"revision":"default","class":%q,"templates":[%q]}`, classOf(number), classOf(number))},
		},
		Spec: corev1.PodSpec{
			NodeName: "node", ServiceAccountName: name,
			Containers: []corev1.Container{
				{Name: "app", Image: "app", Ports: []corev1.ContainerPort{{ContainerPort: port}}},
				{Name: "sidecar", Image: "proxy"},
			},
		},
	}
	created, err := c.kubernetes.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	address := addressOf(service, number)
	created.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.ContainersReady, Status: corev1.ConditionTrue}},
	}
	_, err = c.kubernetes.CoreV1().Pods(namespace).UpdateStatus(ctx, created, metav1.UpdateOptions{})
	return err
}

func (c *city) deletePod(ctx context.Context, service, number int) error {
	now := int64(0)
	return c.kubernetes.CoreV1().Pods(namespaceOf(service)).Delete(ctx, podName(service, number), metav1.DeleteOptions{GracePeriodSeconds: &now})
}

// setEndpoints writes the EndpointSlice as the endpoint controller would. It also has those of
// the pods that are not ready.
func (c *city) setEndpoints(ctx context.Context, service int, pods []int, unready ...int) error {
	_, err := c.kubernetes.DiscoveryV1().EndpointSlices(namespaceOf(service)).Update(ctx, slice(service, pods, unready...), metav1.UpdateOptions{})
	return err
}

func firstPods(n int) []int {
	pods := make([]int, n)
	for i := range pods {
		pods[i] = i
	}
	return pods
}

func slice(service int, pods []int, unready ...int) *discoveryv1.EndpointSlice {
	name, number := "http", int32(port)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: serviceName(service), Namespace: namespaceOf(service), Labels: map[string]string{discoveryv1.LabelServiceName: serviceName(service)}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &number}},
	}
	for _, pod := range slices.Concat(pods, unready) {
		ready := !slices.Contains(unready, pod)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{addressOf(service, pod)}, Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespaceOf(service), Name: podName(service, pod)},
		})
	}
	return s
}

// callersOf returns the services whose identities may call a service, if policies decide.
func callersOf(service, services int) []int {
	var callers []int
	for i := 1; i <= min(maxCallees, services-1); i++ {
		callers = append(callers, (service+services-i)%services)
	}
	return callers
}

// calleesOf returns the services that the identity of a service may call, if policies decide.
func calleesOf(service, services int) []int {
	var callees []int
	for i := 1; i <= min(maxCallees, services-1); i++ {
		callees = append(callees, (service+i)%services)
	}
	return callees
}

// target returns the TrafficTarget that lets callers call a service.
func target(service int, suffix string, callers ...int) string {
	text := fmt.Sprintf(`
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: %[2]s%[3]s, namespace: %[1]s}
spec:
  destination: {kind: ServiceAccount, name: %[2]s, namespace: %[1]s}
  rules: [{kind: HTTPRouteGroup, name: all, matches: [all]}]
  sources:
`, namespaceOf(service), serviceName(service), suffix)
	for _, caller := range callers {
		text += fmt.Sprintf("  - {kind: ServiceAccount, name: %s, namespace: %s}\n", serviceName(caller), namespaceOf(caller))
	}
	return text
}

// authorization returns the AuthorizationPolicy that lets callers call a service, which is
// Istio's counterpart of the TrafficTarget for the server's side.
func authorization(service int, suffix string, callers ...int) string {
	text := fmt.Sprintf(`
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: %[2]s%[3]s, namespace: %[1]s}
spec:
  selector: {matchLabels: {app: %[2]s}}
  rules:
  - from:
    - source:
        principals:
`, namespaceOf(service), serviceName(service), suffix)
	for _, caller := range callers {
		text += fmt.Sprintf("        - cluster.local/ns/%s/sa/%s\n", namespaceOf(caller), serviceName(caller))
	}
	return text
}

// visibility returns the Sidecar by which the proxies of a service see only the services that
// they may call, which is Istio's counterpart of the TrafficTarget for the client's side.
func visibility(service int, callees ...int) string {
	text := fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  workloadSelector: {labels: {app: %[2]s}}
  egress:
  - hosts:
`, namespaceOf(service), serviceName(service))
	for _, callee := range callees {
		text += fmt.Sprintf("    - %[1]s/%[2]s.%[1]s.svc.cluster.local\n", namespaceOf(callee), serviceName(callee))
	}
	return text
}

// route returns an HTTPRoute that splits the traffic of a service, which also has a header
// that the proxies' configuration contains.
func route(service int, header string, weight int) string {
	next := service + 1
	return fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  parentRefs: [{group: "", kind: Service, name: %[2]s, port: 80}]
  rules:
  - filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-scale, value: %[4]q}]}}]
    backendRefs:
    - {name: %[2]s, port: 80, weight: %[5]d}
    - {name: %[3]s, port: 80, weight: %[6]d}
`, namespaceOf(service), serviceName(service), serviceName(next), header, weight, 100-weight)
}

func (c *city) apply(ctx context.Context, texts ...string) error {
	return each(texts, func(object *unstructured.Unstructured) error { return apiserver.Apply(ctx, c.client, object) })
}

// remove deletes the objects, of which some may not exist.
func (c *city) remove(ctx context.Context, texts ...string) error {
	return each(texts, func(object *unstructured.Unstructured) error {
		return client.IgnoreNotFound(c.client.Delete(ctx, object))
	})
}

// each calls do with each object of the texts.
func each(texts []string, do func(*unstructured.Unstructured) error) error {
	for _, text := range texts {
		objects, err := apiserver.Decode([]byte(text))
		if err != nil {
			return err
		}
		for _, object := range objects {
			if err := do(object); err != nil {
				return err
			}
		}
	}
	return nil
}

// proxies returns the pods of the first n services whose proxies are of the class, one of each
// service, with tokens as the kubelet would obtain them.
func (c *city) proxies(ctx context.Context, n int, class, audience string) ([]Pod, error) {
	number := slices.IndexFunc(firstPods(endpoints), func(pod int) bool { return classOf(pod) == class })
	return c.withTokens(ctx, n, audience, func(i int) (service, pod int) { return i, number })
}

// allPods returns the pods of all services with their tokens, those of one service apart.
func (c *city) allPods(ctx context.Context, audience string) ([]Pod, error) {
	return c.withTokens(ctx, c.services*endpoints, audience, func(i int) (service, pod int) { return i % c.services, i / c.services })
}

// withTokens returns n pods with tokens as the kubelet would obtain them. The function which
// returns the numbers of a pod and its service.
func (c *city) withTokens(ctx context.Context, n int, audience string, which func(i int) (service, pod int)) ([]Pod, error) {
	pods := make([]Pod, n)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range pods {
		group.Go(func() error {
			service, number := which(i)
			namespace := namespaceOf(service)
			pod, err := c.kubernetes.CoreV1().Pods(namespace).Get(ctx, podName(service, number), metav1.GetOptions{})
			if err != nil {
				return err
			}
			seconds := int64(24 * 60 * 60)
			token, err := c.kubernetes.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, serviceName(service), &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
				Audiences: []string{audience}, ExpirationSeconds: &seconds,
				BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
			}}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			pods[i] = Pod{
				Namespace: namespace, Name: pod.Name, UID: string(pod.UID), ServiceAccount: serviceName(service),
				Address: addressOf(service, number), Token: token.Status.Token,
			}
			return nil
		})
	}
	return pods, group.Wait()
}
