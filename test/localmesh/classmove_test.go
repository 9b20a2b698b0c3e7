package localmesh_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/classmove"
	"github.com/outrigger-mesh/outrigger/internal/cli"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

const movedMesh = `
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec:
  sidecar: {sidecarClass: envoy, drainSeconds: 2, concurrency: 1}
  traffic: {enablePermissiveTrafficPolicyMode: true}
  observability: {enableDebugServer: true}
`

const movedNamespace = `
apiVersion: v1
kind: Namespace
metadata:
  name: %s
  labels: {openservicemesh.io/monitored-by: osm}
  annotations: {openservicemesh.io/sidecar-injection: enabled}
`

const movedClient = `
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: users}
spec:
  containers: [{name: app, image: in-the-test}]
`

const movedService = `
apiVersion: v1
kind: Service
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  selector: {app: %[2]s}
  ports: [{name: http, port: 80, targetPort: 8080}]
`

// TestClassMove moves the pods of two namespaces to another class and back, under load, with the
// command: their objects are in an API server, their pods in the lab. CLASS_MOVE_PODS=30 has more
// pods, and 200 requests a second.
func TestClassMove(t *testing.T) {
	pods, rate := 4, 40
	if text := os.Getenv("CLASS_MOVE_PODS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		pods, rate = n, 200
	}
	c := newMovedCluster(t, max(2, pods/6), min(6, pods/2))
	c.settle(t)
	for _, move := range [][]string{{"envoy", "haproxy"}, {"haproxy", "envoy"}} {
		load := c.startLoad(t, rate)
		began := time.Now()
		result := c.move(t, "--from", move[0], "--to", move[1])
		took := time.Since(began)
		load.end(t)
		t.Logf("from %s to %s: %d pods in %s, %d requests, %.0f a second", move[0], move[1], pods, took.Round(time.Second), load.total.Load(), float64(load.total.Load())/took.Seconds())
		if result.Outcome != classmove.Complete || result.Proof.Classes[move[1]] != pods || result.Proof.Connected[move[1]] != pods {
			t.Fatalf("it ends with %+v; the proof is %+v", result, result.Proof)
		}
		for _, name := range c.mesh.Pods() {
			pod := c.mesh.Pod(name)
			if class := inject.ClassOf(pod.Object()); name != "users/client" && class != move[1] {
				t.Errorf("in the lab, pod %s has the class %s", name, class)
			} else if pids, err := pod.Container("outrigger-proxy").PIDs(class); err != nil || len(pids) == 0 {
				t.Errorf("in the lab, no %s runs in pod %s: %v", class, name, err)
			}
		}
	}
}

// movedCluster is an API server whose Deployments have their pods in a lab. It does the work of the
// controller of Deployments, of the webhook, by 'outrigger inject', and of the kubelet.
type movedCluster struct {
	mesh       *localmesh.Mesh
	kube       kubernetes.Interface
	kubeconfig string
	// manifests are those of the mesh.
	manifests map[string]string
	pods      map[string]*movedPod
	serial    int
	services  []string
}

// movedPod is a pod of a Deployment.
type movedPod struct {
	*corev1.Pod
	owner, hash string
	served      bool
	ready       atomic.Bool
	// leaving is when it stopped to be an endpoint.
	leaving time.Time
}

func newMovedCluster(t *testing.T, deployments, replicas int) *movedCluster {
	t.Helper()
	if testing.Short() || !apiserver.Built() {
		t.Skip("SKIPPED: ", apiserver.ErrNotBuilt)
	}
	if err := programs(t).Check("haproxy"); err != nil {
		t.Skip("SKIPPED: ", err)
	}
	c := &movedCluster{pods: make(map[string]*movedPod), manifests: map[string]string{
		"mesh.yaml": movedMesh, "client.yaml": fmt.Sprintf(movedNamespace, "users") + "---" + movedClient,
	}}
	for _, namespace := range []string{"bank", "shop"} {
		c.manifests[namespace+".yaml"] = fmt.Sprintf(movedNamespace, namespace)
	}
	for i := range deployments {
		namespace, name := []string{"bank", "shop"}[i%2], fmt.Sprintf("web-%d", i)
		c.manifests[name+".yaml"] = fmt.Sprintf(movedService, namespace, name)
		c.services = append(c.services, name+"."+namespace)
	}
	c.mesh = newMesh(t, localmesh.Options{Manifests: maps.Clone(c.manifests)})

	server := apiserver.StartServer(t)
	admin, err := ctrlclient.New(server.Config, ctrlclient.Options{Scheme: kube.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	text, err := server.Kubeconfig("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	c.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(c.kubeconfig, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if c.kube, err = kubernetes.NewForConfig(server.Config); err != nil {
		t.Fatal(err)
	}
	create := func(obj ctrlclient.Object) {
		t.Helper()
		if err := admin.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "osm-system"}})
	var config v1alpha2.MeshConfig
	if err := yaml.Unmarshal([]byte(movedMesh), &config); err != nil {
		t.Fatal(err)
	}
	create(&config)
	for _, namespace := range []string{"bank", "shop"} {
		var ns corev1.Namespace
		if err := yaml.Unmarshal([]byte(c.manifests[namespace+".yaml"]), &ns); err != nil {
			t.Fatal(err)
		}
		create(&ns)
		create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: namespace}})
	}
	for _, service := range c.services {
		name, namespace, _ := strings.Cut(service, ".")
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
		d.Spec.Replicas = new(int32(replicas))
		d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
		d.Spec.Template.Labels = d.Spec.Selector.MatchLabels
		d.Spec.Template.Spec.ServiceAccountName, d.Spec.Template.Spec.AutomountServiceAccountToken = "default", new(false)
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "app", Image: "in-the-test", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}}
		if _, err := c.kube.AppsV1().Deployments(namespace).Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			if err := c.reconcile(ctx, t); err != nil && ctx.Err() == nil {
				t.Errorf("in place of Kubernetes: %v", err)
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
	})
	t.Cleanup(func() { cancel(); done.Wait() })
	return c
}

// command runs a command of outrigger.
func (c *movedCluster) command(ctx context.Context, stdin string, stderr io.Writer, args ...string) (string, error) {
	var stdout strings.Builder
	cmd := cli.NewRootCommand()
	cmd.SetArgs(append(args, "--kubeconfig", c.kubeconfig))
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	return stdout.String(), err
}

func (c *movedCluster) move(t *testing.T, args ...string) classmove.Result {
	t.Helper()
	pages := httptest.NewServer(c.mesh.DebugPages())
	defer pages.Close()
	out, failed := c.command(t.Context(), "", t.Output(), append([]string{
		"class", "move", "-n", "shop", "-n", "bank", "--window", "5s", "-o", "json", "--debug-address", strings.TrimPrefix(pages.URL, "http://"),
	}, args...)...)
	var result classmove.Result
	if err := json.Unmarshal([]byte(out), &result); err != nil || failed != nil {
		t.Fatalf("the move fails: %v, %v: %s", failed, err, out)
	}
	return result
}

// settle waits until all pods are ready and answer.
func (c *movedCluster) settle(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for {
		list, err := c.kube.AppsV1().Deployments("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(list.Items, func(d appsv1.Deployment) bool { return d.Status.AvailableReplicas < *d.Spec.Replicas }) {
			break
		}
		if t.Failed() || time.Now().After(deadline) {
			t.Fatal("the pods do not get ready")
		}
		time.Sleep(time.Second)
	}
	for _, service := range c.services {
		eventually(t, c.mesh.Pod("users/client"), "http://"+service+"/", "200 "+service+" to 127.0.0.6")
	}
}

// reconcile starts and ends pods as the Deployments say, and writes their status.
func (c *movedCluster) reconcile(ctx context.Context, t *testing.T) error {
	list, err := c.kube.AppsV1().Deployments("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	// The lab injects again when it starts a pod, so its namespaces need the same class.
	for _, name := range []string{"bank", "shop"} {
		ns, err := c.kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		c.manifests[name+".yaml"] = strings.Replace(fmt.Sprintf(movedNamespace, name), "enabled}", "enabled, "+metadata.Class+": "+cmp.Or(ns.Annotations[metadata.Class], "envoy")+"}", 1)
	}
	var ended []string
	for i := range list.Items {
		gone, err := c.roll(ctx, &list.Items[i])
		if err != nil {
			return err
		}
		ended = append(ended, gone...)
	}
	if err := c.mesh.Replace(ctx, c.manifests); err != nil {
		return err
	}
	for _, name := range ended {
		pod := c.pods[name]
		delete(c.pods, name)
		if err := c.kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	for name, pod := range c.pods {
		started := c.mesh.Pod(name)
		if pod.served || started == nil {
			continue
		}
		pod.served = true
		serve(t, started, pod.Labels["app"]+"."+pod.Namespace)
		go func() {
			if started.Ready(ctx) == nil {
				pod.ready.Store(true)
			}
		}()
	}
	for i := range list.Items {
		if err := c.writeStatus(ctx, &list.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

func hashOf(d *appsv1.Deployment) string {
	text, _ := json.Marshal(d.Spec.Template)
	return fmt.Sprintf("%x", sha256.Sum256(text))[:10]
}

// roll begins to replace the pods of a Deployment, at most two at a time and without having fewer
// than it should, and returns those that have ended.
func (c *movedCluster) roll(ctx context.Context, d *appsv1.Deployment) (ended []string, err error) {
	const surge = 2
	owner, hash, replicas := d.Namespace+"/"+d.Name, hashOf(d), int(*d.Spec.Replicas)
	var all, isNew, available int
	for _, name := range slices.Sorted(maps.Keys(c.pods)) {
		pod := c.pods[name]
		if pod.owner != owner {
			continue
		}
		switch {
		case !pod.leaving.IsZero() && time.Since(pod.leaving) > 2*time.Second:
			delete(c.manifests, "pod-"+pod.Name+".yaml")
			ended = append(ended, name)
			continue
		case pod.leaving.IsZero():
			all++
			if pod.hash == hash {
				isNew++
			}
			if pod.ready.Load() {
				available++
				c.write(pod)
			}
		}
	}
	for ; isNew < replicas && all < replicas+surge; isNew, all = isNew+1, all+1 {
		if err := c.create(ctx, d, hash); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.pods)) {
		if pod := c.pods[name]; pod.owner == owner && pod.hash != hash && pod.leaving.IsZero() && available > replicas {
			pod.leaving = time.Now()
			available--
			c.write(pod)
		}
	}
	return ended, nil
}

// create creates a pod with the sidecar that it gets now.
func (c *movedCluster) create(ctx context.Context, d *appsv1.Deployment, hash string) error {
	c.serial++
	bare := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: *d.Spec.Template.ObjectMeta.DeepCopy(), Spec: *d.Spec.Template.Spec.DeepCopy()}
	bare.Namespace, bare.Name = d.Namespace, fmt.Sprintf("%s-%s-%d", d.Name, hash, c.serial)
	bare.Labels["pod-template-hash"] = hash
	bare.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: d.Name + "-" + hash, UID: d.UID, Controller: new(true)}}
	text, err := yaml.Marshal(bare)
	if err != nil {
		return err
	}
	var stderr strings.Builder
	injected, err := c.command(ctx, string(text), &stderr, "inject", "-f", "-", "--from-cluster")
	if err != nil {
		return fmt.Errorf("injecting pod %s: %w: %s", bare.Name, err, stderr.String())
	}
	pod := &movedPod{Pod: &corev1.Pod{}, owner: d.Namespace + "/" + d.Name, hash: hash}
	if err := yaml.Unmarshal([]byte(injected), pod.Pod); err != nil {
		return err
	}
	made, err := c.kube.CoreV1().Pods(pod.Namespace).Create(ctx, pod.Pod, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pod.UID = made.UID
	pod.Status.PodIP = fmt.Sprintf("198.18.%d.%d", 100+c.serial/200, 10+c.serial%200)
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	c.pods[pod.Namespace+"/"+pod.Name] = pod
	c.write(pod)
	return nil
}

// write writes the manifest of a pod with its readiness.
func (c *movedCluster) write(pod *movedPod) {
	ready := corev1.ConditionFalse
	if pod.ready.Load() && pod.leaving.IsZero() {
		ready = corev1.ConditionTrue
	}
	object := pod.DeepCopy()
	object.Status.Phase = corev1.PodRunning
	object.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}, {Type: corev1.ContainersReady, Status: ready}}
	// Both are from the same types.
	text, _ := yaml.Marshal(object)
	c.manifests["pod-"+pod.Name+".yaml"] = string(text)
}

func (c *movedCluster) writeStatus(ctx context.Context, d *appsv1.Deployment) error {
	var replicas, updated, available int
	hash := hashOf(d)
	for _, pod := range c.pods {
		if pod.owner != d.Namespace+"/"+d.Name {
			continue
		}
		if replicas++; !pod.leaving.IsZero() {
			continue
		}
		if pod.hash == hash {
			updated++
		}
		if pod.ready.Load() {
			available++
		}
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"observedGeneration": d.Generation, "replicas": replicas, "updatedReplicas": updated, "availableReplicas": available, "readyReplicas": available,
	}})
	if err == nil {
		_, err = c.kube.AppsV1().Deployments(d.Namespace).Patch(ctx, d.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	return err
}

// movedLoad sends requests from the client to all services.
type movedLoad struct {
	total  atomic.Int64
	stop   chan struct{}
	done   sync.WaitGroup
	mu     sync.Mutex
	failed []string
}

func (c *movedCluster) startLoad(t *testing.T, rate int) *movedLoad {
	t.Helper()
	l := &movedLoad{stop: make(chan struct{})}
	from := c.mesh.Pod("users/client")
	const workers = 10
	for i := range workers {
		l.done.Go(func() {
			client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DialContext: from.Dial}}
			defer client.CloseIdleConnections()
			tick := time.NewTicker(time.Second * workers / time.Duration(rate))
			defer tick.Stop()
			for n := i; ; n++ {
				select {
				case <-l.stop:
					return
				case <-tick.C:
				}
				l.send(client, c.services[n%len(c.services)])
			}
		})
	}
	return l
}

func (l *movedLoad) send(client *http.Client, service string) {
	l.total.Add(1)
	answer, err := client.Get("http://" + service + "/")
	text := ""
	if err == nil {
		var body []byte
		body, err = io.ReadAll(answer.Body)
		answer.Body.Close()
		text = fmt.Sprintf("%d %s", answer.StatusCode, body)
	}
	if err != nil || !strings.HasPrefix(text, "200 "+service) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.failed = append(l.failed, fmt.Sprintf("%s %s: %s, %v", time.Now().Format(time.TimeOnly), service, text, err))
	}
}

// end ends the load and fails the test if a request has failed.
func (l *movedLoad) end(t *testing.T) {
	t.Helper()
	close(l.stop)
	l.done.Wait()
	if len(l.failed) > 0 {
		t.Errorf("%d of %d requests failed: %s", len(l.failed), l.total.Load(), strings.Join(l.failed[:min(5, len(l.failed))], "; "))
	}
}
