// Package apiserver starts a real kube-apiserver and etcd for tests and for the
// demo. The programs are compiled from Go modules by test/cluster/build.sh.
//
// There is no kubelet, scheduler or controller manager: callers must do their work.
package apiserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// ErrNotBuilt is returned if the programs have not been compiled on this machine.
var ErrNotBuilt = errors.New("kube-apiserver and etcd are not compiled; run 'make apiserver'")

// Server is a running API server.
type Server struct {
	env *envtest.Environment
	// Config has the rights of a cluster administrator.
	Config *rest.Config
}

// Run starts etcd and kube-apiserver on free loopback ports and waits until
// they serve. crdDirs are folders with CustomResourceDefinitions to install. The
// error is ErrNotBuilt if the programs are missing.
func Run(crdDirs ...string) (*Server, error) { return RunWith(nil, crdDirs...) }

// RunWith is Run with flags of kube-apiserver, by their names without dashes.
func RunWith(flags map[string]string, crdDirs ...string) (*Server, error) {
	assets, err := assetsDir()
	if err != nil {
		return nil, err
	}
	env := &envtest.Environment{
		BinaryAssetsDirectory: assets,
		CRDDirectoryPaths:     crdDirs,
		ErrorIfCRDPathMissing: true,
		// The default of 20 seconds is too short beside other tests on two cores.
		ControlPlaneStartTimeout: 2 * time.Minute,
	}
	// The default has room for 254 services.
	env.ControlPlane.GetAPIServer().Configure().Set("service-cluster-ip-range", "10.0.0.0/14")
	for name, value := range flags {
		env.ControlPlane.GetAPIServer().Configure().Set(name, value)
	}
	config, err := env.Start()
	if err != nil {
		// One of the two programs may have started.
		return nil, errors.Join(fmt.Errorf("starting kube-apiserver and etcd from %s: %w", assets, err), env.Stop())
	}
	// The default of 5 requests a second is for clients that share a server.
	config.QPS, config.Burst = -1, 0
	return &Server{env: env, Config: config}, nil
}

// Kubeconfig returns the content of a kubeconfig file for a new user in the groups.
func (s *Server) Kubeconfig(user string, groups ...string) ([]byte, error) {
	u, err := s.env.AddUser(envtest.User{Name: user, Groups: groups}, nil)
	if err != nil {
		return nil, fmt.Errorf("adding the user %s: %w", user, err)
	}
	return u.KubeConfig()
}

// ServiceAccountKey returns the key that signs the tokens of service accounts, as PEM.
func (s *Server) ServiceAccountKey() ([]byte, error) {
	return os.ReadFile(filepath.Join(s.env.ControlPlane.GetAPIServer().CertDir, "sa-signer.key"))
}

// Stop ends both programs and removes their data.
func (s *Server) Stop() error { return s.env.Stop() }

// GatewayCRDs returns the folder with the CRDs of Gateway API's standard channel, in its Go
// module.
func GatewayCRDs() (string, error) {
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api")
	list.Dir = Root()
	out, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("finding the module of Gateway API: %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "config", "crd", "standard"), nil
}

// Start runs an API server with the CRDs of Outrigger and of Gateway API for one test and
// stops it when the test ends. It calls Require.
func Start(t testing.TB) *rest.Config {
	t.Helper()
	return StartServer(t).Config
}

// Require skips a test that needs an API server with -short, or if the programs are missing.
// In the latter case the test fails if the environment variable CI is set.
func Require(t testing.TB) {
	t.Helper()
	switch {
	case testing.Short():
		t.Skip("SKIPPED: it needs kube-apiserver and etcd; run 'make test-all'")
	case Built():
	case os.Getenv("CI") == "":
		t.Skip("SKIPPED:", ErrNotBuilt)
	default:
		t.Fatal(ErrNotBuilt)
	}
}

// StartServer is like Start but returns the Server.
func StartServer(t testing.TB) *Server {
	t.Helper()
	return StartWith(t, nil)
}

// PodCertificates are the flags with which Kubernetes 1.36 serves PodCertificateRequests and
// ClusterTrustBundles. Later releases serve them without flags.
func PodCertificates() map[string]string {
	return map[string]string{
		"feature-gates":  "PodCertificateRequest=true,ClusterTrustBundle=true,ClusterTrustBundleProjection=true",
		"runtime-config": "certificates.k8s.io/v1beta1/podcertificaterequests=true,certificates.k8s.io/v1beta1/clustertrustbundles=true",
	}
}

// StartWith is StartServer with flags of kube-apiserver, as for RunWith.
func StartWith(t testing.TB, flags map[string]string) *Server {
	t.Helper()
	Require(t)
	gateway, err := GatewayCRDs()
	if err != nil {
		t.Fatal(err)
	}
	server, err := RunWith(flags, filepath.Join(Root(), "charts", "outrigger", "crds"), gateway)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Errorf("stopping the API server: %v", err)
		}
	})
	return server
}

// Root returns the repository's folder, which contains the working directory. Programs
// compiled with -trimpath do not know where their sources are.
func Root() string {
	dir, _ := os.Getwd()
	for dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "test", "cluster", "build.sh")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return "."
}

// Built reports whether the programs have been compiled on this machine.
func Built() bool {
	_, err := assetsDir()
	return err == nil
}

func assetsDir() (string, error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		return dir, nil
	}
	out, err := exec.Command(filepath.Join(Root(), "test", "cluster", "build.sh"), "--where", "apiserver").Output()
	if err != nil {
		return "", fmt.Errorf("running test/cluster/build.sh --where: %w", err)
	}
	dir := strings.TrimSpace(string(out))
	if _, err := os.Stat(filepath.Join(dir, "done")); err != nil {
		return "", ErrNotBuilt
	}
	return dir, nil
}
