package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// demo is the state of one run.
type demo struct {
	binary, file string

	dir      string
	server   *apiserver.Server
	injector *exec.Cmd
	client   client.Client
	address  string
}

// pod is a pod of the demo; denied is why the API server refused it.
type pod struct {
	from    string
	created *corev1.Pod
	denied  string
}

func (d *demo) run(ctx context.Context) error {
	var err error
	if d.dir, err = os.MkdirTemp("", "outrigger-demo-"); err != nil {
		return err
	}
	say("starting kube-apiserver and etcd")
	if d.server, err = apiserver.Run(); err != nil {
		return err
	}
	if d.client, err = client.New(d.server.Config, client.Options{}); err != nil {
		return err
	}
	kubeconfig, err := d.server.Kubeconfig("demo", "system:masters")
	if err != nil {
		return err
	}
	if err := os.WriteFile(d.kubeconfig(), kubeconfig, 0o600); err != nil {
		return err
	}
	if err := d.install(ctx); err != nil {
		return fmt.Errorf("installing the mesh: %w", err)
	}
	if err := d.startInjector(ctx); err != nil {
		return fmt.Errorf("starting the injector: %w", err)
	}
	pods, err := d.createPods(ctx)
	if err != nil {
		return fmt.Errorf("creating the bookstore: %w", err)
	}
	if err := d.print(ctx, pods); err != nil {
		return err
	}
	return d.compareOffline(ctx, pods)
}

// stop stops everything that the demo started.
func (d *demo) stop() error {
	if d.injector != nil && d.injector.Process != nil {
		_ = d.injector.Process.Signal(syscall.SIGTERM)
		_ = d.injector.Wait()
	}
	if d.dir != "" {
		_ = os.RemoveAll(d.dir)
	}
	if d.server != nil {
		return d.server.Stop()
	}
	return nil
}

func (d *demo) kubeconfig() string { return filepath.Join(d.dir, "kubeconfig") }

// install applies the output of 'outrigger manifests'. The only change is that the
// webhook is called by URL, since there is no cluster network.
func (d *demo) install(ctx context.Context) error {
	say("installing CRDs, MeshConfig, RBAC and the webhook: outrigger manifests")
	out, err := d.outrigger(ctx, "manifests", "--set", "osm.sidecarClass=envoy")
	if err != nil {
		return err
	}
	objects, err := apiserver.Decode(out)
	if err != nil {
		return err
	}
	if d.address, err = freeAddress(); err != nil {
		return err
	}
	for _, obj := range objects {
		if obj.GetKind() == "MutatingWebhookConfiguration" {
			if err := callByURL(obj, "https://"+d.address+"/inject"); err != nil {
				return err
			}
		}
		if err := apiserver.Apply(ctx, d.client, obj); err != nil {
			return err
		}
	}
	return nil
}

func callByURL(obj *unstructured.Unstructured, url string) error {
	webhooks, _, err := unstructured.NestedSlice(obj.Object, "webhooks")
	if err != nil {
		return err
	}
	for _, w := range webhooks {
		w.(map[string]any)["clientConfig"] = map[string]any{"url": url}
	}
	return unstructured.SetNestedSlice(obj.Object, webhooks, "webhooks")
}

// freeAddress returns an address of loopback with a free port.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

func (d *demo) startInjector(ctx context.Context) error {
	healthAddress, err := freeAddress()
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(d.dir, "injector.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	d.injector = exec.Command(d.binary, "injector", "--kubeconfig", d.kubeconfig(), "--listen", d.address,
		"--health-listen", healthAddress, "--extra-names", "127.0.0.1", "--shutdown-delay", "0s")
	d.injector.Stderr = log
	if err := d.injector.Start(); err != nil {
		return err
	}
	say("the injector creates its certificate, writes the caBundle and calls its own /inject")
	begin := time.Now()
	var last string
	for time.Since(begin) < 60*time.Second {
		response, err := http.Get("http://" + healthAddress + "/health/ready")
		if err == nil {
			var body bytes.Buffer
			_, _ = body.ReadFrom(response.Body)
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				say("ready after %s", time.Since(begin).Round(10*time.Millisecond))
				return nil
			}
			last = strings.TrimSpace(body.String())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	text, _ := os.ReadFile(log.Name())
	return fmt.Errorf("not ready after a minute: %s\n%s", last, text)
}

// createPods applies the manifests and creates the pods of the workloads.
func (d *demo) createPods(ctx context.Context) ([]pod, error) {
	say("creating %s", d.file)
	text, err := os.ReadFile(d.file)
	if err != nil {
		return nil, err
	}
	objects, err := apiserver.Decode(text)
	if err != nil {
		return nil, err
	}
	var pods []pod
	for _, obj := range objects {
		if obj.GetKind() != "Pod" {
			if err := apiserver.Apply(ctx, d.client, obj); err != nil {
				return nil, err
			}
		}
		made, err := podsOf(obj)
		if err != nil {
			return nil, err
		}
		for _, p := range made {
			err := d.client.Create(ctx, p.created)
			if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
				p.denied = err.Error()
			} else if err != nil {
				return nil, fmt.Errorf("a pod of %s: %w", p.from, err)
			}
			pods = append(pods, p)
		}
	}
	return pods, nil
}

func (d *demo) print(ctx context.Context, pods []pod) error {
	fmt.Println()
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "FROM\tPOD\tDECISION\tREASON\tCLASS\tCONTAINERS (INIT IN BRACKETS)")
	for _, p := range pods {
		if p.denied != "" {
			return fmt.Errorf("%s was denied: %s", p.from, p.denied)
		}
		out, err := d.outrigger(ctx, "check-inject", p.created.Name, "-n", p.created.Namespace, "--kubeconfig", d.kubeconfig(), "-o", "json")
		if err != nil {
			return err
		}
		var answers []struct{ Outcome, Reason, Class string }
		if err := json.Unmarshal(out, &answers); err != nil || len(answers) != 1 {
			return fmt.Errorf("check-inject answers %s (%v)", out, err)
		}
		a := answers[0]
		_, injected := p.created.Annotations["openservicemesh.io/sidecar-status"]
		if injected != (a.Outcome == "inject") {
			return fmt.Errorf("%s: check-inject says %s, but the pod has a sidecar: %t", p.created.Name, a.Outcome, injected)
		}
		fmt.Fprintf(w, "%s\t%s/%s\t%s\t%s\t%s\t%s\n", p.from, p.created.Namespace, p.created.Name, a.Outcome, a.Reason, a.Class, containers(p.created))
	}
	return w.Flush()
}

// compareOffline injects the file offline and creates the resulting pods by dry run,
// in a namespace without the webhook. They must equal those that the webhook made.
func (d *demo) compareOffline(ctx context.Context, pods []pod) error {
	fmt.Println()
	say("injecting the same file offline: outrigger inject -f %s", d.file)
	out, err := d.outrigger(ctx, "inject", "-f", d.file)
	if err != nil {
		return err
	}
	objects, err := apiserver.Decode(out)
	if err != nil {
		return err
	}
	var offline []pod
	for _, obj := range objects {
		made, err := podsOf(obj)
		if err != nil {
			return err
		}
		offline = append(offline, made...)
	}
	if len(offline) != len(pods) {
		return fmt.Errorf("offline there are %d pods, not %d", len(offline), len(pods))
	}
	for i, p := range offline {
		p.created.Namespace = "default"
		if err := d.client.Create(ctx, p.created, client.DryRunAll); err != nil {
			return fmt.Errorf("%s, injected offline: %w", p.from, err)
		}
		if diff := cmp.Diff(pods[i].created.Spec, p.created.Spec); diff != "" {
			return fmt.Errorf("%s: the webhook's pod (-) and the offline one (+) differ:\n%s", p.from, diff)
		}
	}
	say("all %d pod specs are identical to those from the webhook", len(pods))
	return nil
}

func (d *demo) outrigger(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, d.binary, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("outrigger %s: %w\n%s", strings.Join(args, " "), err, &stderr)
	}
	return stdout.Bytes(), nil
}

func say(format string, args ...any) { fmt.Printf("* "+format+"\n", args...) }
