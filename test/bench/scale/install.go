package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

const (
	outrigger = "outrigger"
	istiod    = "istiod"
)

// build compiles the controller.
func build(ctx context.Context, dir string) (string, error) {
	program := filepath.Join(dir, "outrigger-core")
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", program, "./cmd/outrigger-core")
	cmd.Dir = apiserver.Root()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the controller: %w\n%s", err, out)
	}
	return program, nil
}

// installOutrigger creates what the chart creates for a controller, and returns the
// controller, which is not started.
func installOutrigger(ctx context.Context, server *apiserver.Server, c client.Client, dir, program string, permissive bool) (*plane, error) {
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: controlPlane}}); err != nil {
		return nil, err
	}
	release, err := chart.Render(ctx, controlPlane, map[string]any{"osm": map[string]any{
		"enablePermissiveTrafficPolicy": permissive, "enableDebugServer": true,
	}})
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
	file, err := kubeconfig(server, dir, outrigger, "system:serviceaccount:"+controlPlane+":outrigger-controller")
	if err != nil {
		return nil, err
	}
	health, err := freePort()
	if err != nil {
		return nil, err
	}
	debug, err := freePort()
	if err != nil {
		return nil, err
	}
	return &plane{
		name: outrigger, program: program, dir: dir,
		args: []string{
			"controller", "--kubeconfig", file, "--mesh-name", "osm", "--mesh-namespace", controlPlane,
			"--bind-address", "127.0.0.1", "--health-listen", ":" + health, "--debug-listen", ":" + debug, "--proxy-listen", ":0", "--log-level", "warn",
		},
		ready: "http://127.0.0.1:" + health + "/health/ready", metrics: "http://127.0.0.1:" + health + "/metrics", pprof: "http://127.0.0.1:" + debug + "/debug/pprof/",
		trust: "outrigger-ca", audience: identity.Audience,
		setup: Setup{Config: "127.0.0.1:15128", Identity: "127.0.0.1:15129", ServerName: "outrigger-controller." + controlPlane + ".svc"},
		files: "127.0.0.1:6060",
	}, nil
}

// installIstiod creates what istiod needs, and returns istiod, which is not started. It has
// the settings of Istio's chart, which are mostly the program's defaults, and the rights of an
// administrator.
func installIstiod(ctx context.Context, server *apiserver.Server, c client.Client, dir, program string) (*plane, error) {
	const namespace = "istio-system"
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return nil, err
	}
	file, err := kubeconfig(server, dir, istiod, "istiod", "system:masters")
	if err != nil {
		return nil, err
	}
	return &plane{
		name: istiod, program: program, dir: dir,
		args: []string{"discovery", "--kubeconfig", file, "--domain", "cluster.local", "--monitoringAddr", ":15014", "--log_output_level", "default:warn"},
		env: []string{
			"KUBECONFIG=" + file, "REVISION=default", "PILOT_CERT_PROVIDER=istiod", "POD_NAME=istiod", "POD_NAMESPACE=" + namespace,
			"SERVICE_ACCOUNT=istiod", "CLUSTER_ID=Kubernetes",
		},
		ready: "http://127.0.0.1:8080/ready", metrics: "http://127.0.0.1:15014/metrics", pprof: "http://127.0.0.1:8080/debug/pprof/",
		trust: "istio-ca-root-cert", audience: "istio-ca",
		setup: Setup{Config: "127.0.0.1:15012", Identity: "127.0.0.1:15012", ServerName: "istiod." + namespace + ".svc", Istio: true},
	}, nil
}

// kubeconfig writes a kubeconfig file for a new user.
func kubeconfig(server *apiserver.Server, dir, name, user string, groups ...string) (string, error) {
	content, err := server.Kubeconfig(user, groups...)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, name+".kubeconfig")
	return file, os.WriteFile(file, content, 0o600)
}
