package envoy

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	proxyless "github.com/outrigger-mesh/outrigger/drivers/grpc"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// runProxyless runs the application of test/grpc as a pod without a proxy, whose View is
// the first. It returns its input and output.
func runProxyless(t *testing.T, ca *authority, view *mesh.View, arguments ...string) (io.Writer, *bufio.Scanner) {
	t.Helper()
	dir := t.TempDir()
	app := filepath.Join(dir, "app")
	build := exec.Command("go", "build", "-o", app, ".")
	build.Dir = "../../test/grpc"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building test/grpc: %v\n%s", err, out)
	}
	controller, err := drivertest.NewController("grpc", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := controller.Trust(ca.Authority); err != nil {
		t.Fatal(err)
	}
	controller.SetView(view.Proxy.UID, view)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := portOf(free)
	free.Close()
	if _, err := (proxyless.Driver{}).Start(controller.Context(t.Context(), port)); err != nil {
		t.Fatal(err)
	}
	ca.writePair(dir, ca.issueTo(view.Proxy.Identity, view.Proxy.UID))
	files := map[string]string{
		"certificate_file": filepath.Join(dir, "chain.pem"), "private_key_file": filepath.Join(dir, "key.pem"), "ca_certificate_file": filepath.Join(dir, "bundle.pem"),
	}
	bootstrap, err := json.Marshal(map[string]any{
		"xds_servers": []any{map[string]any{
			"server_uri": fmt.Sprintf("127.0.0.1:%d", port), "server_features": []string{"xds_v3"},
			"channel_creds": []any{map[string]any{"type": "tls", "config": files}},
		}},
		"node":                                   map[string]string{"id": view.Proxy.UID},
		"certificate_providers":                  map[string]any{"outrigger": map[string]any{"plugin_name": "file_watcher", "config": files}},
		"server_listener_resource_name_template": "outrigger/server/%s",
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), app, arguments...)
	cmd.Env = append(os.Environ(), "GRPC_EXPERIMENTAL_XDS_SNI=true", "GRPC_XDS_BOOTSTRAP_CONFIG="+string(bootstrap))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return in, bufio.NewScanner(out)
}

// proxylessView returns the View of a pod without a proxy.
func proxylessView(id mesh.Identity, inbound mesh.Inbound, f fixture) *mesh.View {
	p := newProxy()
	p.UID, p.Class, p.Identity, p.Addresses = "00000000-0000-4000-8000-000000000001", "grpc", id, addresses("127.0.0.1")
	f.proxy, f.scope = mesh.Seal(p), "proxyless"
	v := f.view()
	return mesh.NewView(v.Proxy, v.Settings, mesh.Seal(&inbound), v.Outbound, v.Egress)
}

// TestGRPCToEnvoy has gRPC without a proxy call an application behind a real Envoy.
func TestGRPCToEnvoy(t *testing.T) {
	const check = grpc_health_v1.Health_Check_FullMethodName
	backing, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(backing) }()
	t.Cleanup(server.Stop)
	e := runInbound(t, func(*app) inboundCase {
		return inboundCase{inbound: mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{{
			Port: portOf(backing), Protocol: mesh.GRPC,
			Access: rules(rule("bookstore/check", []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: check}}}, buyer)),
		}}}}
	})
	// redirected takes the place of the pod's redirection.
	redirected, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { redirected.Close() })
	go func() {
		for {
			from, err := redirected.Accept()
			if err != nil {
				return
			}
			to, err := e.dial(context.Background(), backing.Addr().String())
			if err != nil {
				from.Close()
				continue
			}
			go func() { defer to.Close(); _, _ = io.Copy(to, from) }()
			go func() { defer from.Close(); _, _ = io.Copy(from, to) }()
		}
	}()
	store := port("bookstore", 80)
	b := backend(store, mesh.GRPC, endpoint(portOf(redirected), "127.0.0.1"))
	for _, tt := range []struct {
		name, method, want string
		caller             mesh.Identity
	}{
		{"allowed", check, "OK", buyer},
		{"another method", grpc_health_v1.Health_List_FullMethodName, "PermissionDenied", buyer},
		{"another identity", check, "PermissionDenied", ops},
	} {
		t.Run(tt.name, func(t *testing.T) {
			view := proxylessView(tt.caller, mesh.Inbound{TLS: mesh.Strict}, fixture{
				destinations: []*mesh.Destination{destination(store, mesh.GRPC, "10.96.0.1", b)}, backends: []*mesh.Backend{b},
			})
			in, out := runProxyless(t, e.ca, view, "call", "xds:///bookstore.bookstore:80")
			fmt.Fprintln(in, tt.method)
			if !out.Scan() || !strings.HasPrefix(out.Text(), tt.want) {
				t.Errorf("got %s, want %s", out.Text(), tt.want)
			}
		})
	}
}

// TestEnvoyToGRPC has an application behind a real Envoy call gRPC without a proxy.
func TestEnvoyToGRPC(t *testing.T) {
	ca, id := newAuthority(t), identity("bookstore", "bookstore")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	number := portOf(free)
	free.Close()
	const check = grpc_health_v1.Health_Check_FullMethodName
	_, out := runProxyless(t, ca, proxylessView(id, mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{{
		Port: number, Protocol: mesh.GRPC,
		Access: rules(rule("bookstore/check", []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: check}}}, newProxy().Identity)),
	}}}, fixture{}), "serve", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), number).String(), "v1")
	if !out.Scan() || out.Text() != "SERVING <nil>" {
		t.Fatal(out.Text())
	}
	store := port("bookstore", 80)
	b := backend(store, mesh.GRPC, endpoint(number, "127.0.0.1"))
	for _, tt := range []struct {
		name, method string
		caller       mesh.Identity
		want         codes.Code
	}{
		{"allowed", check, newProxy().Identity, codes.OK},
		{"another method", grpc_health_v1.Health_List_FullMethodName, newProxy().Identity, codes.PermissionDenied},
		{"another identity", check, ops, codes.PermissionDenied},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			ca.writeTo(dir, tt.caller)
			f := fixture{scope: "*", destinations: []*mesh.Destination{destination(store, mesh.GRPC, "10.96.0.1", b)}, backends: []*mesh.Backend{b}}
			e := startEnvoy(t, f.view(), dir, "outbound")
			conn, err := grpc.NewClient("passthrough:///bookstore:80", grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return e.dial(ctx, "10.96.0.1:80") }))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var header metadata.MD
			err = conn.Invoke(ctx, tt.method, &grpc_health_v1.HealthCheckRequest{}, &grpc_health_v1.HealthCheckResponse{}, grpc.Header(&header))
			if status.Code(err) != tt.want || err == nil && header.Get("server")[0] != "v1" {
				t.Errorf("got %v from %v, want %v", err, header.Get("server"), tt.want)
			}
		})
	}
}
