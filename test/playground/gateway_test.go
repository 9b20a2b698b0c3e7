package playground

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const door = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, namespace: shop}
spec:
  gatewayClassName: outrigger-envoy
  listeners: [{name: http, port: 80, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: door, namespace: shop}
spec:
  parentRefs: [{name: door}]
  hostnames: [shop.localhost]
  rules: [{backendRefs: [{name: web, port: 80}]}]
`

// TestGatewayManifests makes what a cluster's controller would make, but nothing for a Gateway of another
// class, one with own pods, or one without ports.
func TestGatewayManifests(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	other := strings.NewReplacer("name: door", "name: other", "outrigger-envoy", "istio")
	own := strings.NewReplacer("{name: door,", "{annotations: {openservicemesh.io/gateway-pods: own}, name: own,")
	portless := strings.NewReplacer("name: door,", "name: portless,", "port: 80", "port: 0")
	if err := os.WriteFile(file, []byte(strings.Join([]string{door, other.Replace(door), own.Replace(door), portless.Replace(door)}, "---")), 0o600); err != nil {
		t.Fatal(err)
	}
	f := folder{paths: []string{dir}}
	got, _, err := f.read()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, match := range regexp.MustCompile(`(?m)^kind: (\w+)\nmetadata:\n(?:  .*\n)*?  name: (\S+)\n`).FindAllStringSubmatch(got[gatewayManifest], -1) {
		names = append(names, match[1]+" "+match[2])
	}
	want := "GatewayClass outrigger-envoy, ServiceAccount door-outrigger-envoy, Deployment door-outrigger-envoy, Service door-outrigger-envoy, PodDisruptionBudget door-outrigger-envoy"
	if text := strings.Join(names, ", "); text != want {
		t.Errorf("there are %s, want %s, in\n%s", text, want, got[gatewayManifest])
	}
	// A user's file is not replaced.
	if err := os.Rename(file, filepath.Join(dir, gatewayManifest)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.read(); err == nil || !strings.Contains(err.Error(), gatewayManifest) {
		t.Errorf("with a file of that name the error is %v", err)
	}
}

// TestGateway calls a program of the mesh from this machine.
func TestGateway(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "shop")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(shop+"---"+door), 0o600); err != nil {
		t.Fatal(err)
	}
	commands := new(Commands)
	if err := commands.AddCommand("shop/web='" + application(t, dir) + "' serve"); err != nil {
		t.Fatal(err)
	}
	out, problems, end := start(t, dir, commands, 3)
	address := ""
	until(t, "an address of the gateway", func() bool {
		if match := regexp.MustCompile(`Port 80 of Gateway shop/door is at (\S+);`).FindStringSubmatch(out.String()); match != nil {
			address = match[1]
		}
		return address != ""
	})
	get := func(host string) string {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/books", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host, r.Close = host, true
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return fmt.Sprintf("%d %s %v", response.StatusCode, text, err)
	}
	until(t, "an answer through the gateway", func() bool { return get("shop.localhost") == "200 hello <nil>" })
	if got := get("other.localhost"); !strings.HasPrefix(got, "404 ") {
		t.Errorf("another host gets %q, want 404", got)
	}
	end()
	if got := get("shop.localhost"); !strings.Contains(got, "refused") {
		t.Errorf("after the end, the answer is %q", got)
	}
	if text := problems.String(); strings.Contains(text, "level=WARN") {
		t.Errorf("the lab warns:\n%s", text)
	}
}
