package behaviour_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// grpcRow is a statement about gRPC applications, with or without a proxy.
type grpcRow struct {
	name, says string
	proves     func(t *testing.T, m *grpcMesh)
}

// grpcRows is the table of docs/grpc.md. The last rows change the mesh for good.
var grpcRows = []grpcRow{
	{"Calls and streams", "Calls pass over mTLS, and streams with all their messages.", each(func(t *testing.T, m *grpcMesh, p grpcPair) {
		m.wants(t, p, p.web(), "cart-v1", grpcCall{method: call, times: 5}, "OK [cart-v1]")
		m.wants(t, p, p.web(), "cart-v1", grpcCall{method: stream, times: 5}, "OK [cart-v1] 3")
	})},
	{"Denied by default", "A client that no rule names gets no answer.", each(func(t *testing.T, m *grpcMesh, p grpcPair) {
		m.fails(t, p, p.thief(), "cart-v2", grpcCall{method: call, times: 3})
	})},
	{"Allowed by method", "The server allows the methods of the client's own rule, and no others.", each(func(t *testing.T, m *grpcMesh, p grpcPair) {
		m.wants(t, p, p.thief(), "cart-v1", grpcCall{method: list, times: 3}, "OK [cart-v1]")
		m.wants(t, p, p.thief(), "cart-v1", grpcCall{method: call, times: 3}, "PermissionDenied")
		m.wants(t, p, p.web(), "cart-v1", grpcCall{method: list, times: 3}, "PermissionDenied")
	})},
	{"Mesh TLS only", "A server answers neither plaintext nor clients without a certificate of the mesh.", testMeshTLSOnly},
	{"Changed rules", "Changed rules apply to open connections.", testChangedRules},
	{"Two identities", "A service whose endpoints have different service accounts is called like any other.", each(func(t *testing.T, m *grpcMesh, p grpcPair) {
		eventually(t, 30*time.Second, func() error {
			counts, err := m.count(p, "cart", 20)
			if err != nil || counts["OK [cart-v1]"] == 0 || counts["OK [cart-v2]"] == 0 || len(counts) != 2 {
				return fmt.Errorf("of 20 calls: %v, %v", counts, err)
			}
			return nil
		})
	})},
	{"TrafficSplit", "Calls are distributed by weight.", testGRPCSplit},
	{"GRPCRoute", "Calls are routed by service and method; a call that no rule matches fails.", testGRPCRoute},
	{"GRPCRoute with a header", "Calls are routed by header, or fail if the client cannot compare it; then the route has a Problem.", testGRPCHeader},
	{"Pods that end", "A service's calls go to the endpoints that are left.", testPodsEnd},
	{"Controller restarts", "Calls pass without the controller, and a change made meanwhile takes effect once it is back.", testControllerRestarts},
	{"Certificates renewed", "Renewed certificates are used for new connections and for the connection to the controller, without a restart.", testGRPCRenewal},
	{"Root rotated", "A second root is trusted, signs, and remains as the only one, while calls pass.", testGRPCRotation},
}

// TestGRPC runs the table for all pairs in which a side has no proxy, with the injector's
// patch, the controller and the agent.
func TestGRPC(t *testing.T) {
	t.Parallel()
	m := newGRPCMesh(t)
	for _, r := range grpcRows {
		t.Run(r.name, func(t *testing.T) { r.proves(t, m) })
	}
}

// TestGRPCPage checks that docs/grpc.md has the table.
func TestGRPCPage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "grpc.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range grpcRows {
		if line := fmt.Sprintf("| %s | %s |\n", r.name, r.says); !strings.Contains(string(page), line) {
			t.Errorf("docs/grpc.md lacks the line\n%s", line)
		}
	}
}

// each returns the test of a statement for all pairs at once.
func each(test func(t *testing.T, m *grpcMesh, p grpcPair)) func(*testing.T, *grpcMesh) {
	return func(t *testing.T, m *grpcMesh) {
		m.each(t, func(t *testing.T, p grpcPair) { test(t, m, p) })
	}
}

// count makes calls of a pair's client and returns how many have which result.
func (m *grpcMesh) count(p grpcPair, service string, times int) (map[string]int, error) {
	got, err := m.ask(p, p.web(), service, grpcCall{method: call, times: times})
	counts := map[string]int{}
	for _, line := range got {
		counts[line]++
	}
	return counts, err
}

// server returns the address of the server of a class, on the network.
func (m *grpcMesh) server(class string) string {
	return net.JoinHostPort(m.Pod("shop-" + class + "/cart-v1").Addresses()[0].String(), "50051")
}

func testMeshTLSOnly(t *testing.T, m *grpcMesh) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := m.Lab().Node().Dial(ctx, "tcp", m.server("grpc"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
		t.Fatal(err)
	}
	// A TLS server may answer with an alert; an HTTP/2 server answers with its settings.
	answer := make([]byte, 9)
	if n, err := conn.Read(answer); err == nil && n > 3 && answer[3] == 4 {
		t.Errorf("plaintext is answered with %q", answer[:n])
	}
	withoutCertificate, err := m.Lab().Node().Dial(ctx, "tcp", m.server("grpc"))
	if err != nil {
		t.Fatal(err)
	}
	defer withoutCertificate.Close()
	client := tls.Client(withoutCertificate, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, ServerName: "cart-v1.shop-grpc.sa.cluster.local"})
	_ = client.SetDeadline(time.Now().Add(20 * time.Second))
	if err := client.HandshakeContext(ctx); err == nil {
		// With TLS 1.3 the client learns only afterwards that it was refused.
		_, err = client.Read(answer)
		if err == nil {
			t.Errorf("a client without a certificate is answered with %q", answer)
		}
	}
}

func testChangedRules(t *testing.T, m *grpcMesh) {
	m.each(t, func(t *testing.T, p grpcPair) {
		m.wants(t, p, p.thief(), "cart-v1", grpcCall{method: list}, "OK")
		m.wants(t, p, p.thief(), "cart-v1", grpcCall{method: call}, "PermissionDenied")
	})
	t.Run("more", func(t *testing.T) {
		m.apply(t, func(class string) string { return m.allow("more", class, "cart-v1", "thief", "call") })
		m.each(t, func(t *testing.T, p grpcPair) {
			m.wants(t, p, p.thief(), "cart-v1", grpcCall{method: call, times: 5}, "OK")
		})
	})
	m.each(t, func(t *testing.T, p grpcPair) {
		m.wants(t, p, p.thief(), "cart-v1", grpcCall{method: call, times: 5}, "PermissionDenied")
	})
}

func testGRPCSplit(t *testing.T, m *grpcMesh) {
	m.apply(t, func(class string) string {
		return fmt.Sprintf(`
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: cart, namespace: shop-%s}
spec: {service: cart, backends: [{service: cart-v1, weight: 75}, {service: cart-v2, weight: 25}]}
`, class)
	})
	m.each(t, func(t *testing.T, p grpcPair) {
		eventually(t, 30*time.Second, func() error {
			counts, err := m.count(p, "cart", 400)
			// Four standard deviations of 300 of 400 are 35.
			if v1 := counts["OK [cart-v1]"]; err != nil || v1 < 265 || v1 > 335 || v1+counts["OK [cart-v2]"] != 400 {
				return fmt.Errorf("of 400 calls %v, %v; want 300 to cart-v1 and 100 to cart-v2", counts, err)
			}
			return nil
		})
	})
}

// grpcRoute returns a GRPCRoute of the service cart with the rules.
func grpcRoute(class, rules string) string {
	return fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: cart, namespace: shop-%s}
spec:
  parentRefs: [{group: "", kind: Service, name: cart}]
  rules:
%s`, class, rules)
}

func testGRPCRoute(t *testing.T, m *grpcMesh) {
	m.apply(t, func(class string) string {
		return grpcRoute(class, `
  - matches: [{method: {service: grpc.health.v1.Health, method: Check}}]
    backendRefs: [{name: cart-v2, port: 50051}]
`)
	})
	m.each(t, func(t *testing.T, p grpcPair) {
		m.wants(t, p, p.web(), "cart", grpcCall{method: call, times: 10}, "OK [cart-v2]")
		m.fails(t, p, p.web(), "cart", grpcCall{method: stream, times: 3})
	})
}

func testGRPCHeader(t *testing.T, m *grpcMesh) {
	m.apply(t, func(class string) string {
		return grpcRoute(class, `
  - matches: [{headers: [{name: x-kind, value: two}]}]
    backendRefs: [{name: cart-v2, port: 50051}]
  - backendRefs: [{name: cart-v1, port: 50051}]
`)
	})
	m.each(t, func(t *testing.T, p grpcPair) {
		if p.client != "grpc" {
			m.wants(t, p, p.web(), "cart", grpcCall{method: call, times: 5, kind: "two"}, "OK [cart-v2]")
			m.wants(t, p, p.web(), "cart", grpcCall{method: call, times: 5, kind: "one"}, "OK [cart-v1]")
			return
		}
		m.wants(t, p, p.web(), "cart", grpcCall{method: call, times: 5, kind: "two"}, "Unavailable")
		m.wants(t, p, p.web(), "cart", grpcCall{method: call, times: 5, kind: "one"}, "Unavailable")
		eventually(t, 30*time.Second, func() error {
			text, err := m.Debug(t.Context(), "/debug/problems")
			if err != nil {
				return err
			}
			var problems []mesh.Problem
			if err := json.Unmarshal(text, &problems); err != nil {
				return err
			}
			if !slices.ContainsFunc(problems, func(found mesh.Problem) bool {
				return found.Reason == "NotSupportedByProxy" && found.Object.Kind == "GRPCRoute" && found.Object.Namespace == "shop-"+p.server && strings.Contains(found.Message, "grpc")
			}) {
				return fmt.Errorf("the GRPCRoute in shop-%s has no such Problem: %s", p.server, text)
			}
			return nil
		})
	})
}

func testPodsEnd(t *testing.T, m *grpcMesh) {
	for _, class := range m.classes {
		file := class + ".yaml"
		whole, err := os.ReadFile(filepath.Join(m.ManifestDir(), file))
		if err != nil {
			t.Fatal(err)
		}
		pod := strings.NewReplacer("VERSION", "cart-v2", "CLASS", class).Replace(strings.SplitAfter(grpcServer, "---\n")[0])
		if !bytes.Contains(whole, []byte(pod)) {
			t.Fatalf("the manifest has no pod %s", pod)
		}
		if err := m.Apply(t.Context(), file, strings.Replace(string(whole), pod, "", 1)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Apply(context.WithoutCancel(t.Context()), file, string(whole)); err != nil {
				t.Error(err)
			}
		})
	}
	m.each(t, func(t *testing.T, p grpcPair) {
		m.wants(t, p, p.web(), "cart", grpcCall{method: call, times: 20}, "OK [cart-v1]")
	})
}

func testControllerRestarts(t *testing.T, m *grpcMesh) {
	if err := m.KillController(); err != nil {
		t.Fatal(err)
	}
	m.each(t, func(t *testing.T, p grpcPair) {
		m.wants(t, p, p.web(), "cart-v1", grpcCall{method: call, times: 5}, "OK")
		m.wants(t, p, p.thief(), "cart-v1", grpcCall{method: call, times: 5}, "PermissionDenied")
	})
	m.apply(t, func(class string) string { return m.allow("more", class, "cart-v1", "thief", "call") })
	if err := m.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.each(t, func(t *testing.T, p grpcPair) {
		m.wants(t, p, p.thief(), "cart-v1", grpcCall{method: call, times: 5}, "OK")
	})
}

// shortLives makes certificates short-lived, until the test's end.
func (m *grpcMesh) shortLives(t *testing.T) {
	t.Helper()
	set := func(ctx context.Context, text string) {
		t.Helper()
		if err := m.Apply(ctx, "mesh.yaml", text); err != nil {
			t.Fatal(err)
		}
	}
	set(t.Context(), grpcMeshConfig+"  certificate: {serviceCertValidityDuration: 15s}\n")
	t.Cleanup(func() { set(context.WithoutCancel(t.Context()), grpcMeshConfig) })
	// Existing certificates are valid for a day; restarted agents request new ones.
	for _, pod := range m.Pods() {
		if err := m.Pod(pod).Container("outrigger-proxy").Kill(); err != nil {
			t.Fatal(err)
		}
	}
	m.waitLeaf(t, func(leaf *x509.Certificate) error {
		if life := time.Until(leaf.NotAfter); life > time.Minute {
			return fmt.Errorf("the certificate is valid for another %s", life)
		}
		return nil
	})
	m.each(t, func(t *testing.T, p grpcPair) {
		m.wants(t, p, p.web(), "cart-v1", grpcCall{method: call, times: 5}, "OK")
	})
}

// waitLeaf waits until the certificate of the server without a proxy is as wanted.
func (m *grpcMesh) waitLeaf(t *testing.T, is func(*x509.Certificate) error) {
	t.Helper()
	eventually(t, 90*time.Second, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		conn, err := m.Lab().Node().Dial(ctx, "tcp", m.server("grpc"))
		if err != nil {
			return err
		}
		defer conn.Close()
		err = errors.New("the server shows no certificate")
		// The handshake fails without a client certificate, but the server's comes first.
		_ = tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, VerifyConnection: func(state tls.ConnectionState) error {
			err = is(state.PeerCertificates[0])
			return nil
		}}).HandshakeContext(ctx)
		return err
	})
}

func testGRPCRenewal(t *testing.T, m *grpcMesh) {
	m.shortLives(t)
	seen := map[string]bool{}
	m.waitLeaf(t, func(leaf *x509.Certificate) error {
		for _, p := range m.pairs() {
			got, err := m.ask(p, p.web(), "cart-v1", grpcCall{method: call, fresh: true})
			if len(seen) > 0 && (err != nil || got[0] != "OK [cart-v1]") {
				t.Errorf("while certificates are renewed, a call of %s gives %v, %v", p, got, err)
			}
		}
		if seen[leaf.SerialNumber.String()] = true; len(seen) < 4 {
			return fmt.Errorf("%d certificates were shown, want 4", len(seen))
		}
		return nil
	})
	// The certificates of the first connections to the controller have expired.
	m.apply(t, func(class string) string { return m.allow("more", class, "cart-v1", "thief", "call") })
	m.each(t, func(t *testing.T, p grpcPair) {
		m.wants(t, p, p.thief(), "cart-v1", grpcCall{method: call, times: 5}, "OK")
	})
}

const grpcRoots = `
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshRootCertificate
metadata: {name: %[1]s, namespace: osm-system}
spec:
  trustDomain: cluster.local
  intent: %[2]s
  provider: {tresor: {ca: {secretRef: {name: %[1]s, namespace: osm-system}}}}
---
`

// testGRPCRotation leaves the mesh with another root.
func testGRPCRotation(t *testing.T, m *grpcMesh) {
	m.shortLives(t)
	certificate, key, err := issuer.NewRoot("cluster.local", 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(m.CADir(), "next-root")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"ca.crt": certificate, "ca.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	block, _ := pem.Decode(certificate)
	root, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ former, next string }{{"active", "passive"}, {"passive", "active"}, {"", "active"}} {
		manifest := fmt.Sprintf(grpcRoots, "next-root", step.next)
		if step.former != "" {
			manifest += fmt.Sprintf(grpcRoots, "outrigger-ca-bundle", step.former)
		}
		if err := m.Apply(t.Context(), "roots.yaml", manifest); err != nil {
			t.Fatal(err)
		}
		m.waitLeaf(t, func(leaf *x509.Certificate) error {
			for _, p := range m.pairs() {
				if got, err := m.ask(p, p.web(), "cart-v1", grpcCall{method: call, fresh: true}); err != nil || got[0] != "OK [cart-v1]" {
					t.Errorf("during rotation, a call of %s gives %v, %v", p, got, err)
				}
			}
			if bundle, err := os.ReadFile(filepath.Join(m.CADir(), "bundle.crt")); err != nil || bytes.Count(bundle, []byte("BEGIN CERTIFICATE")) != 2 {
				return fmt.Errorf("with %+v, the pods do not trust two roots: %s, %v", step, bundle, err)
			}
			if byNext := leaf.CheckSignatureFrom(root) == nil; byNext != (step.next == "active") {
				return fmt.Errorf("with %+v, the certificate is signed by the new root: %t", step, byNext)
			}
			return nil
		})
	}
}
