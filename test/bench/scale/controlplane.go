package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
	"github.com/outrigger-mesh/outrigger/test/bench/process"
)

// controller is the process that is measured.
type controller struct {
	program, dir string
	args         []string
	cmd          *exec.Cmd
	log          *os.File
	health       string
	ended        chan error
}

// installController creates what the chart creates for a controller, and returns the
// controller, which is not started.
func installController(ctx context.Context, server *apiserver.Server, c client.Client, dir, program string, permissive bool) (*controller, error) {
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: controlPlane}}); err != nil {
		return nil, err
	}
	release, err := chart.Render(ctx, controlPlane, map[string]any{"osm": map[string]any{"enablePermissiveTrafficPolicy": permissive}})
	if err != nil {
		return nil, err
	}
	for _, text := range release.Objects {
		objects, err := apiserver.Decode([]byte(text))
		if err != nil {
			return nil, err
		}
		for _, object := range objects {
			isRight := object.GroupVersionKind().Group == rbacv1.GroupName && object.GetName() == "outrigger-controller"
			switch {
			case isRight, object.GetKind() == "Secret", object.GetKind() == "MeshConfig", object.GetKind() == "ServiceAccount":
				if err := apiserver.Apply(ctx, c, object); err != nil {
					return nil, err
				}
			}
		}
	}
	kubeconfig, err := server.Kubeconfig("system:serviceaccount:" + controlPlane + ":outrigger-controller")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		return nil, err
	}
	health, err := freePort()
	if err != nil {
		return nil, err
	}
	out := &controller{program: program, dir: dir, health: "127.0.0.1:" + health, args: []string{
		"controller", "--kubeconfig", file, "--mesh-name", "osm", "--mesh-namespace", controlPlane,
		"--bind-address", "127.0.0.1", "--health-listen", ":" + health, "--proxy-listen", ":0", "--log-level", "warn",
	}}
	return out, nil
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// start starts the controller and waits until it is ready.
func (c *controller) start(ctx context.Context) (time.Duration, error) {
	var err error
	if c.log, err = os.OpenFile(filepath.Join(c.dir, "controller.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return 0, err
	}
	began := time.Now()
	c.cmd = exec.Command(c.program, c.args...)
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		return 0, err
	}
	c.ended = make(chan error, 1)
	go func() { c.ended <- c.cmd.Wait() }()
	for {
		response, err := http.Get("http://" + c.health + "/health/ready")
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return time.Since(began), nil
			}
		}
		select {
		case err := <-c.ended:
			text, _ := os.ReadFile(c.log.Name())
			return 0, fmt.Errorf("the controller has ended: %v\n%s", err, text)
		case <-ctx.Done():
			text, _ := os.ReadFile(c.log.Name())
			return 0, fmt.Errorf("the controller does not become ready: %w\n%s", ctx.Err(), text)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop ends the controller as Kubernetes does.
func (c *controller) stop() error {
	if c.cmd == nil {
		return nil
	}
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.ended:
	case <-time.After(time.Minute):
		_ = c.cmd.Process.Kill()
		<-c.ended
	}
	c.cmd = nil
	return c.log.Close()
}

// cpu returns the CPU time that the controller has used.
func (c *controller) cpu() (time.Duration, error) { return process.CPU(c.cmd.Process.Pid) }

// Memory is the memory of the controller in bytes.
type Memory struct {
	process.Memory
	// Heap are the spans of Go's heap that are in use, with objects that are not freed yet.
	Heap int64
}

// rootOf waits for the mesh's trust bundle.
func rootOf(ctx context.Context, c client.Client) ([]byte, error) {
	for {
		var list corev1.ConfigMapList
		if err := c.List(ctx, &list, client.InNamespace(namespaceOf(0))); err != nil {
			return nil, err
		}
		for _, m := range list.Items {
			for _, text := range m.Data {
				if strings.Contains(text, "BEGIN CERTIFICATE") {
					return []byte(text), nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no ConfigMap in %s has the trust bundle: %w", namespaceOf(0), ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

const audience = identity.Audience

// memory returns the controller's memory.
func (c *controller) memory() (Memory, error) {
	used, err := process.MemoryOf(c.cmd.Process.Pid)
	if err != nil {
		return Memory{}, err
	}
	heap, err := c.metric("go_memstats_heap_inuse_bytes")
	return Memory{used, heap}, err
}

// metric returns a metric of the controller's without labels, or 0 if it has none.
func (c *controller) metric(name string) (int64, error) {
	if c.health == "" {
		return 0, nil
	}
	response, err := http.Get("http://" + c.health + "/metrics")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			n, err := strconv.ParseFloat(value, 64)
			return int64(n), err
		}
	}
	return 0, lines.Err()
}

// installOther creates what istiod needs, and returns the process that runs the command.
func installOther(ctx context.Context, server *apiserver.Server, c client.Client, dir, command string) (*controller, error) {
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "istio-system"}}); err != nil {
		return nil, err
	}
	kubeconfig, err := server.Kubeconfig("istiod", "system:masters")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		return nil, err
	}
	return &controller{program: "/bin/sh", dir: dir, health: "127.0.0.1:8080", args: []string{"-c", command}}, nil
}
