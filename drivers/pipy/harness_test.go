package pipy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/internal/capture"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
	"github.com/outrigger-mesh/outrigger/test/lab"
)

// authority is the root CA of a mesh.
type authority struct{ drivertest.TestAuthority }

func newAuthority(t *testing.T) *authority { return &authority{drivertest.NewTestAuthority(t)} }

// issue returns a certificate with the names, which are URIs or DNS names.
func (a *authority) issue(t *testing.T, names ...string) tls.Certificate {
	t.Helper()
	var dns []string
	var uris []*url.URL
	for _, name := range names {
		if uri, err := url.Parse(name); err == nil && uri.Scheme != "" {
			uris = append(uris, uri)
		} else {
			dns = append(dns, name)
		}
	}
	return a.Sign(&x509.Certificate{
		DNSNames: dns, URIs: uris, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, time.Hour)
}

func encodePEM(kind string, content ...[]byte) []byte {
	var out []byte
	for _, der := range content {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})...)
	}
	return out
}

// pipyPod is a pod whose Pipy runs the real scripts.
type pipyPod struct {
	*lab.Pod
	lab         *lab.Lab
	root        *authority
	feed        mirror.Feed
	identityDir string
	// repo is the folder of its codebase.
	repo string

	mu       sync.Mutex
	identity string
	files    mirror.Set
	acked    chan string
	log      *lockedBuffer
}

// lockedBuffer is a buffer for concurrent use.
type lockedBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

// startPod runs Pipy in a pod with the View's configuration, and an agent that serves it.
func startPod(t *testing.T, view *mesh.View) *pipyPod {
	t.Helper()
	program, err := Driver{}.FindProxy()
	if errors.Is(err, driver.ErrNoProxy) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	if err := lab.Available(); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	s := &pipyPod{root: newAuthority(t), identityDir: filepath.Join(dir, "identity"), repo: filepath.Join(dir, "repo"), acked: make(chan string, 100), log: new(lockedBuffer)}
	for _, d := range []string{dir, filepath.Dir(dir), s.identityDir, s.repo} {
		if err := errors.Join(os.MkdirAll(d, 0o755), os.Chmod(d, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	s.writeIdentity(t, view.Proxy.Identity)
	s.keep(t, view)
	s.feed.Acked = func(version string) { s.acked <- version }
	s.lab, err = lab.New(lab.Options{
		Images: map[string]lab.Image{"pipy": {HostRoot: true, Files: map[string]string{
			"/pipy/pipy": program, "/run/outrigger/repo": s.repo, agentspec.IdentityDir: s.identityDir,
		}}},
		Output: func(_, _ string) io.Writer { return s.log },
		Hosts: func() map[string][]netip.Addr {
			node := []netip.Addr{netip.MustParseAddr("198.18.0.1")}
			return map[string][]netip.Addr{"outside.example": node, "any.outside.example": node}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.lab.Close() })
	uid := int64(1500)
	s.Pod, err = s.lab.StartPod(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: view.Proxy.Namespace, Name: view.Proxy.Name.Name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "pipy", Image: "pipy",
			Command:         append([]string{"/pipy/pipy", threadsFlag + strconv.Itoa(threads)}, append(options("warn"), "/run/outrigger/repo/main.js")...),
			SecurityContext: &corev1.SecurityContext{RunAsUser: &uid},
		}}},
		Status: corev1.PodStatus{PodIPs: podIPs(view.Proxy.Addresses)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of Pipy:\n%s", s.log)
		}
	})
	// A gateway's pod has no redirection.
	if !view.Proxy.Gateway {
		if err := s.Do(func() error { return capture.Apply(agentspec.Redirection{}, capture.Options{DNS: []netip.Addr{}}) }); err != nil {
			t.Fatal(err)
		}
	}
	agent, err := s.Listen(t.Context(), "tcp", "127.0.0.1:15901")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/mirror", &s.feed)
	server := &http.Server{Handler: mux}
	go server.Serve(agent)
	t.Cleanup(func() { server.Close() })
	s.apply(t, view)
	return s
}

func podIPs(addresses []netip.Addr) []corev1.PodIP {
	var out []corev1.PodIP
	for _, a := range addresses {
		out = append(out, corev1.PodIP{IP: a.String()})
	}
	return out
}

// keep writes the View's files into the proxy's codebase, like the agent.
func (s *pipyPod) keep(t *testing.T, view *mesh.View) {
	t.Helper()
	for _, file := range newTranslator().set(view).All() {
		path := filepath.Join(s.repo, filepath.FromSlash(file.Name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(file.Text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// apply sends the View's documents to the proxy and waits until they are in use.
func (s *pipyPod) apply(t *testing.T, view *mesh.View) {
	t.Helper()
	s.mu.Lock()
	s.files = newTranslator().set(view)
	s.mu.Unlock()
	s.offer(t)
}

func (s *pipyPod) offer(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	identity, err := mirror.NewFile("identity", s.identity)
	if err != nil {
		t.Fatal(err)
	}
	files := []*mirror.File{identity}
	for _, file := range s.files.All() {
		if len(file.Name) > len(liveDir) && file.Name[:len(liveDir)] == liveDir {
			files = append(files, file)
		}
	}
	s.mu.Unlock()
	set := mirror.NewSet(files...)
	version := mirror.Version(set)
	s.feed.Set(set)
	deadline := time.After(20 * time.Second)
	for {
		select {
		case got := <-s.acked:
			if got == version {
				return
			}
		case <-deadline:
			t.Fatalf("Pipy has not applied its configuration:\n%s", s.log)
		}
	}
}

// writeIdentity gives the proxy a new certificate of the root.
func (s *pipyPod) writeIdentity(t *testing.T, id mesh.Identity) {
	t.Helper()
	certificate := s.root.issue(t, id.DNSName(), id.String())
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"key.pem":    encodePEM("PRIVATE KEY", key),
		"chain.pem":  encodePEM("CERTIFICATE", certificate.Certificate...),
		"bundle.pem": encodePEM("CERTIFICATE", s.root.Leaf.Raw),
	} {
		path := filepath.Join(s.identityDir, name)
		if err := errors.Join(os.WriteFile(path+".new", content, 0o644), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.identity = time.Now().Format(time.RFC3339Nano)
}

// client returns a client that calls like the pod's application.
func (s *pipyPod) client() *http.Client {
	return &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DialContext: s.Dial, DisableKeepAlives: true}}
}

// get returns the status, 0 if there is no answer, and the body.
func (s *pipyPod) get(t *testing.T, url string) (int, string) {
	t.Helper()
	response, err := s.client().Get(url)
	if err != nil {
		t.Logf("GET %s: %v", url, err)
		return 0, ""
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Logf("GET %s: %v", url, err)
		return 0, ""
	}
	return response.StatusCode, string(body)
}

// peer starts a server of the mesh outside the pod, with the identity.
func (s *pipyPod) peer(t *testing.T, serverName string, handler http.Handler) netip.AddrPort {
	t.Helper()
	listener, err := s.lab.Node().Listen(context.Background(), "tcp", "198.18.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler:  handler,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{s.root.issue(t, serverName)}, ClientCAs: s.root.Pool(),
			ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
		},
	}
	go server.ServeTLS(listener, "", "")
	t.Cleanup(func() { server.Close() })
	return listener.Addr().(*net.TCPAddr).AddrPort()
}
