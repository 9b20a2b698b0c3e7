package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/controller"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/identity/publish"
	"github.com/outrigger-mesh/outrigger/internal/identity/root"
	"github.com/outrigger-mesh/outrigger/internal/identity/store"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// folder is a controller that serves manifests, with its folders.
type folder struct {
	*running
	manifests, ca string
	// host is the address of all its ports.
	host string
}

// folderMesh is a mesh of two pods and a service.
const folderMesh = `
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec:
  sidecar: {maxDataPlaneConnections: 2}
  traffic: {enablePermissiveTrafficPolicyMode: true}
  observability: {enableDebugServer: true}
---
apiVersion: v1
kind: Pod
metadata: {name: desk, namespace: shop}
spec: {serviceAccountName: desk, containers: [{name: desk, image: desk}]}
---
apiVersion: v1
kind: Pod
metadata: {name: cart, namespace: shop, labels: {app: cart}}
spec: {serviceAccountName: cart, containers: [{name: cart, image: cart, ports: [{containerPort: 8080}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: plain, namespace: shop, annotations: {openservicemesh.io/sidecar-injection: disabled}}
spec: {containers: [{name: plain, image: plain}]}
`

// cartService is a change of every proxy's configuration.
const cartService = `
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {selector: {app: cart}, ports: [{port: 80, targetPort: 8080}]}
`

// startFolder runs a controller over the manifests until the test ends, and waits until
// it is ready.
func startFolder(t *testing.T, manifests string) *folder {
	t.Helper()
	f := newFolder(t, manifests)
	f.start(t)
	return f
}

func newFolder(t *testing.T, manifests string) *folder {
	t.Helper()
	f := &folder{manifests: t.TempDir(), ca: filepath.Join(t.TempDir(), "ca"), host: ownAddress()}
	f.write(t, "mesh.yaml", manifests)
	return f
}

// write replaces a manifest atomically.
func (f *folder) write(t *testing.T, name, text string) {
	t.Helper()
	if err := store.WriteFile(filepath.Join(f.manifests, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (f *folder) flags() *controllerFlags {
	return &controllerFlags{
		mesh:   meshFlags{Name: "osm", Namespace: controlPlane, Config: "osm-mesh-config", Revision: "default"},
		source: sourceDir, files: []string{f.manifests}, caDir: f.ca,
		Options: controller.Options{BindAddress: f.host, HealthListen: ":9091", IdentityListen: ":15129", DebugListen: ":9092", ClusterDomain: "cluster.local"},
	}
}

// start starts the controller, also again after a stop.
func (f *folder) start(t *testing.T) {
	t.Helper()
	flags := f.flags()
	if err := flags.check(); err != nil {
		t.Fatal(err)
	}
	f.running = begin(t, f.host+":9091", flags)
	eventually(t, "the controller is ready", func() error {
		_, err := f.get("/health/ready")
		return err
	})
}

// page decodes a debug page.
func (f *folder) page(path string, into any) error {
	text, err := get("http://" + f.host + ":9092" + path)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(text), into)
}

// uid returns the UID of a pod that has a proxy.
func (f *folder) uid(t *testing.T, pod string) string {
	t.Helper()
	var page debug.ProxyPage
	eventually(t, "the page of "+pod, func() error { return f.page(debug.ProxyPath+"?pod="+pod, &page) })
	return page.View.Proxy.UID
}

// peer returns an agent of a pod, with a minted token.
func (f *folder) peer(t *testing.T, pod, account string, change func(*identity.TokenClaims)) *peer {
	t.Helper()
	namespace, name, _ := strings.Cut(pod, "/")
	uid := "none"
	if change == nil {
		uid = f.uid(t, pod)
	}
	key, err := identity.LoadTokenKey(f.ca)
	if err != nil {
		t.Fatal(err)
	}
	claims := identity.TokenClaims{
		Namespace: namespace, ServiceAccount: account, Pod: name, PodUID: uid, Audience: identity.Audience, NotAfter: time.Now().Add(time.Hour),
	}
	if change != nil {
		change(&claims)
	}
	token, err := key.Mint(claims)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := os.ReadFile(filepath.Join(f.ca, publish.BundleFile))
	if err != nil {
		t.Fatal(err)
	}
	return &peer{
		host: f.host, token: token, bundle: bundle, uid: claims.PodUID,
		identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: claims.Namespace, ServiceAccount: claims.ServiceAccount},
	}
}

// states returns the connected proxies with their states, as 'proxy list' prints them.
func (f *folder) states(t *testing.T) string {
	t.Helper()
	text := runCommand(t, "proxy", "list", "--debug-address", f.host+":9092")
	var rows []string
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); fields[0] != "NAMESPACE" {
			rows = append(rows, strings.Join(fields[:4], " "))
		}
	}
	return strings.Join(rows, ", ")
}

func (f *folder) expectStates(t *testing.T, want string) {
	t.Helper()
	eventually(t, "proxies", func() error { return same(want, f.states(t)) })
}

// expectRejected waits for the Problems about rejected configuration, by object.
func (f *folder) expectRejected(t *testing.T, want ...string) {
	t.Helper()
	eventually(t, "Problems", func() error {
		var problems []mesh.Problem
		if err := f.page(debug.ProblemsPath, &problems); err != nil {
			return err
		}
		got := []string{}
		for _, p := range problems {
			if p.Reason == "Rejected" {
				got = append(got, p.Object.String()+": "+p.Message)
			}
		}
		return same(append([]string{}, want...), got)
	})
}

// TestFolderController serves a proxy from its first certificate on, without a cluster.
func TestFolderController(t *testing.T) {
	f := startFolder(t, folderMesh)
	eventually(t, "the trust bundle", func() error {
		_, err := os.Stat(filepath.Join(f.ca, publish.BundleFile))
		return err
	})
	if entries, err := os.ReadDir(f.ca); err != nil || slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), ".new") }) {
		t.Errorf("the CA's folder holds %v, %v", entries, err)
	}

	desk := f.peer(t, "shop/desk", "desk", nil)
	desk.sign(t)
	stream := desk.connect(t)
	clusters := stream.ask(t, clusterType)
	if slices.Contains(clusters.names, "shop/cart:80") {
		t.Errorf("there is a cluster of a Service that there is not: %q", clusters.names)
	}
	stream.ack(t, clusters)
	stream.ack(t, stream.ask(t, listenerType))
	f.expectStates(t, "shop desk envoy Current")

	t.Run("get", func(t *testing.T) { f.testGet(t, desk) })
	t.Run("tokens", f.testTokens)
	t.Run("refused", func(t *testing.T) { f.testRefused(t, stream) })
	t.Run("limit", f.testLimit)
	// It must not end with a part of the test.
	f.stop()
	f.start(t)
	t.Run("restart", func(t *testing.T) { f.testRestart(t, desk) })
	t.Run("switch", f.testSwitch)
	t.Run("no keys", f.testNoKeys)
}

// testGet tests 'proxy get'.
func (f *folder) testGet(t *testing.T, desk *peer) {
	address := f.host + ":9092"
	text := runCommand(t, "proxy", "get", "shop/desk", "--debug-address", address)
	for _, part := range []string{"# Pod:        shop/desk\n", "# Class:      envoy", "# Identity:   " + desk.identity.String(), "# State:      Current", "\n---\n# view.yaml\n", "uid: " + desk.uid, "\n---\n# listeners.yaml\n"} {
		if !strings.Contains(text, part) {
			t.Errorf("'proxy get' does not print %q:\n%s", part, text)
		}
	}
	var page debug.ProxyPage
	if err := json.Unmarshal([]byte(runCommand(t, "proxy", "get", "shop/cart", "--debug-address", address, "-o", "json")), &page); err != nil {
		t.Fatal(err)
	}
	if page.Proxy != nil || page.View.Proxy.Name.Name != "cart" || len(page.Configuration) == 0 {
		t.Errorf("a proxy that is not connected is shown as %+v", page)
	}
	for args, want := range map[string]string{
		"get shop/nobody": "no pod shop/nobody has a proxy",
		"get desk":        "NAMESPACE/POD",
		"list -o table":   "formats are",
	} {
		cmd := NewRootCommand()
		cmd.SetArgs(append(append([]string{"proxy"}, strings.Fields(args)...), "--debug-address", address))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("proxy %s: error %v, want one with %q", args, err, want)
		}
	}
	if got := runCommand(t, "proxy", "list", "-n", "elsewhere", "-o", "json", "--debug-address", address); got != "[]\n" {
		t.Errorf("proxies of a namespace without any: %s", got)
	}
	wide := runCommand(t, "proxy", "list", "-o", "wide", "--debug-address", address)
	if !regexp.MustCompile(`(?m)^shop +desk +envoy +Current +\d+s +- +[0-9a-f]{12} +[0-9a-f]{12} +\d+ +\d+ +127[0-9.:]+ +` + regexp.QuoteMeta(address) + `$`).MatchString(wide) {
		t.Errorf("wide:\n%s", wide)
	}
}

// testTokens requests certificates with a valid token and with invalid ones.
func (f *folder) testTokens(t *testing.T) {
	uid := f.uid(t, "shop/cart")
	for _, tt := range []struct {
		name   string
		change func(*identity.TokenClaims)
		want   codes.Code
	}{
		{"right", func(c *identity.TokenClaims) { c.PodUID = uid }, codes.OK},
		{"no such pod", func(c *identity.TokenClaims) { c.PodUID = "other" }, codes.PermissionDenied},
		{"another service account", func(c *identity.TokenClaims) { c.PodUID, c.ServiceAccount = uid, "desk" }, codes.PermissionDenied},
		{"another audience", func(c *identity.TokenClaims) { c.PodUID, c.Audience = uid, "vault" }, codes.Unauthenticated},
		{"too late", func(c *identity.TokenClaims) { c.PodUID, c.NotAfter = uid, time.Now().Add(-time.Hour) }, codes.Unauthenticated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := f.peer(t, "shop/cart", "cart", tt.change).trySign(t)
			if status.Code(err) != tt.want {
				t.Errorf("error %v, want the code %s", err, tt.want)
			}
		})
	}
}

// testRefused lets a proxy reject the configuration for a new Service.
func (f *folder) testRefused(t *testing.T, stream *stream) {
	for _, way := range []string{"gets the former again", "takes the next"} {
		f.write(t, "cart.yaml", cartService)
		refused := stream.next(t, clusterType)
		if !slices.Contains(refused.names, "shop/cart:80") {
			t.Fatalf("the change brings %q", refused.names)
		}
		stream.nack(t, refused, "no such\nthing")
		f.expectStates(t, "shop desk envoy Rejected")
		f.expectRejected(t, "Service shop/cart: the envoy proxy of pod shop/desk rejects Cluster shop/cart:80; the previous configuration stays in use: no such thing")
		text := runCommand(t, "proxy", "get", "shop/desk", "--debug-address", f.host+":9092")
		if !strings.Contains(text, "# Rejects:    Cluster shop/cart:80: no such thing\n") {
			t.Errorf("'proxy get' does not show it:\n%s", text)
		}
		if way == "takes the next" {
			f.write(t, "cart.yaml", strings.Replace(cartService, "port: 80,", "port: 81,", 1))
			stream.ackUntil(t, clusterType, "shop/cart:81")
		} else if err := os.Remove(filepath.Join(f.manifests, "cart.yaml")); err != nil {
			t.Fatal(err)
		}
		stream.ackAll(t, func() error { return same("shop desk envoy Current", f.states(t)) })
		f.expectRejected(t)
	}
	// The controller must not wait for answers to what it still sends.
	go stream.takeAll()
	if log := f.log.String(); !strings.Contains(log, "reason=Rejected") {
		t.Error("the log does not report the rejection")
	}
}

// testLimit connects one proxy more than the limit, and then changes the limit.
func (f *folder) testLimit(t *testing.T) {
	cart := f.peer(t, "shop/cart", "cart", nil)
	cart.sign(t)
	second := cart.connect(t)
	second.ack(t, second.ask(t, clusterType))
	f.write(t, "mesh.yaml", strings.Replace(folderMesh, "maxDataPlaneConnections: 2", "maxDataPlaneConnections: 1", 1))
	eventually(t, "the limit", func() error {
		var config struct {
			MeshConfig struct {
				Spec struct {
					Sidecar struct{ MaxDataPlaneConnections int }
				}
			}
		}
		return errors.Join(f.page(debug.ConfigPath, &config), same(1, config.MeshConfig.Spec.Sidecar.MaxDataPlaneConnections))
	})
	// Both stay connected, and may connect again.
	f.expectStates(t, "shop cart envoy Waiting, shop desk envoy Current")
	again := cart.connect(t)
	again.ack(t, again.ask(t, clusterType))
	second.close()
	again.close()
	f.expectStates(t, "shop desk envoy Current")
	if err := cart.connect(t).fail(t, clusterType); status.Code(err) == codes.OK || !strings.Contains(err.Error(), "maxDataPlaneConnections") {
		t.Errorf("one too many: %v", err)
	}
	f.write(t, "mesh.yaml", folderMesh)
	eventually(t, "there is room again", func() error {
		third := cart.connect(t)
		defer third.close()
		if err := third.fail(t, clusterType); err != nil {
			return err
		}
		return nil
	})
}

// testRestart connects to a restarted controller with the resources that it sent before.
func (f *folder) testRestart(t *testing.T, desk *peer) {
	stream := desk.connect(t)
	stream.ack(t, stream.ask(t, clusterType))
	stream.ack(t, stream.ask(t, listenerType))
	go stream.takeAll()
	f.expectStates(t, "shop desk envoy Current")
	desk.sign(t)
}

// testSwitch turns the debug pages off and on again.
func (f *folder) testSwitch(t *testing.T) {
	f.write(t, "mesh.yaml", strings.Replace(folderMesh, "enableDebugServer: true", "enableDebugServer: false", 1))
	eventually(t, "no debug pages", func() error {
		cmd := NewRootCommand()
		cmd.SetArgs([]string{"proxy", "list", "--debug-address", f.host + ":9092"})
		cmd.SetOut(&syncBuffer{})
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "enableDebugServer") {
			return fmt.Errorf("error %w", err)
		}
		return nil
	})
	f.write(t, "mesh.yaml", folderMesh)
	eventually(t, "debug pages", func() error {
		var all any
		return f.page(debug.CertsPath, &all)
	})
}

// testNoKeys checks that no page contains keys, tokens or certificate requests.
func (f *folder) testNoKeys(t *testing.T) {
	var index struct{ Pages []string }
	if err := f.page("/debug", &index); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(index.Pages, "/debug/xds") {
		t.Errorf("pages %q, want the driver's among them", index.Pages)
	}
	key, err := os.ReadFile(filepath.Join(f.ca, root.DefaultSecret, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	secret := strings.Split(string(key), "\n")[1]
	for _, path := range index.Pages {
		if strings.HasSuffix(path, "/profile") || strings.HasSuffix(path, "/trace") {
			continue
		}
		if path == debug.ExplainPath {
			path += "?from=shop/desk&to=shop/cart"
		}
		text, err := get("http://" + f.host + ":9092" + path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if strings.Contains(text, "PRIVATE KEY") || strings.Contains(text, secret) {
			t.Errorf("%s shows a key", path)
		}
	}
	if log := f.log.String(); strings.Contains(log, "PRIVATE KEY") || strings.Contains(log, secret) {
		t.Error("the log shows a key")
	}
}

// TestFolderFails starts controllers whose configuration prevents the start.
func TestFolderFails(t *testing.T) {
	for name, tt := range map[string]struct {
		manifests string
		change    func(*controllerFlags)
		want      string
	}{
		"unknown class": {strings.Replace(folderMesh, "sidecar: {", "sidecar: {sidecarClass: nginx, ", 1), nil, `Error creating sidecar driver: sidecar: unknown driver "nginx"`},
		"taken port": {strings.Replace(folderMesh, "sidecar: {", "sidecar: {sidecarDrivers: [{sidecarName: envoy, proxyServerPort: 9091}], ", 1), nil,
			"Error initializing proxy control server: driver envoy: "},
		"taken port of health": {folderMesh, func(f *controllerFlags) { f.HealthListen = ":15129" }, "listening for certificate requests: "},
		"no folder for the CA": {folderMesh, func(f *controllerFlags) { f.caDir = filepath.Join(f.files[0], "mesh.yaml") }, "--ca-dir"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := newFolder(t, tt.manifests).flags()
			if tt.change != nil {
				tt.change(flags)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := flags.run(ctx, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
			for _, port := range []string{"9091", "15129", "15128"} {
				if listener, err := net.Listen("tcp", net.JoinHostPort(flags.BindAddress, port)); err != nil {
					t.Errorf("afterwards: %v", err)
				} else if err := listener.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for name, args := range map[string]string{
		"no such source":     "--source etcd",
		"no manifests":       "--source dir",
		"files of a cluster": "-f a",
		"a name to listen":   "--source dir -f a --bind-address localhost",
	} {
		cmd := NewRootCommand()
		cmd.SetArgs(append([]string{"controller"}, strings.Fields(args)...))
		if err := cmd.ExecuteContext(t.Context()); !errors.As(err, &usage.Error{}) {
			t.Errorf("%s: error %v, want one about usage", name, err)
		}
	}
}
