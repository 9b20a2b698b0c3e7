package localmesh_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/test/lab"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// eachProxy runs a test for each sidecar class whose proxy is on this machine.
func eachProxy(t *testing.T, test func(t *testing.T, class, program string)) {
	proxies := programs(t).Proxies
	for _, class := range slices.Sorted(maps.Keys(proxies)) {
		t.Run(class, func(t *testing.T) { test(t, class, proxies[class]) })
	}
}

// TestBareImage runs sidecars whose image contains only the proxy's program and its
// libraries: no shell, no env, no other file of this machine.
func TestBareImage(t *testing.T) {
	eachProxy(t, func(t *testing.T, class, program string) {
		image, err := bareImage(program, "/usr/local/bin/"+class)
		if err != nil {
			t.Fatal(err)
		}
		m := newMesh(t, localmesh.Options{
			Manifests: map[string]string{
				"mesh.yaml": strings.Replace(meshConfig, "envoy", class, 1), "client.yaml": client, "server.yaml": server,
			},
			ProxyImages: map[string]lab.Image{class: image},
		})
		pod := m.Pod("shop/client")
		serve(t, m.Pod("shop/server"), "hello")
		if err := m.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantNoOtherProgram(t, pod, class)
		eventually(t, pod, "http://server.shop/", "200 hello to 127.0.0.6")

		before := pod.Container("outrigger-proxy").PID()
		if err := m.Apply(t.Context(), "server.yaml", strings.Replace(server, "port: 80,", "port: 81,", 1)); err != nil {
			t.Fatal(err)
		}
		eventually(t, pod, "http://server.shop:81/", "200 hello to 127.0.0.6")
		if after := pod.Container("outrigger-proxy").PID(); after != before {
			t.Errorf("the sidecar was process %d and is %d: it was started again", before, after)
		}
		metrics, err := get(t.Context(), pod, "http://127.0.0.1:15901/metrics")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(metrics, "proxy_restarts_total 0\n") || strings.Contains(metrics, `versions_total{result="refused"} 1`) {
			t.Errorf("the agent says:\n%s", metrics)
		}
	})
}

// wantNoOtherProgram fails if there are other programs in the sidecar's PATH.
func wantNoOtherProgram(t *testing.T, pod *lab.Pod, class string) {
	t.Helper()
	root := fmt.Sprintf("/proc/%d/root", pod.Container("outrigger-proxy").PID())
	for _, folder := range strings.Split("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", ":") {
		files, err := os.ReadDir(filepath.Join(root, folder))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		for _, file := range files {
			if folder != "/usr/local/bin" || file.Name() != class {
				t.Errorf("the image has the program %s/%s", folder, file.Name())
			}
		}
	}
	if _, err := os.Stat(filepath.Join(root, "usr/local/bin", class)); err != nil {
		t.Error(err)
	}
}

// TestMissingProgram runs a sidecar whose image lacks the proxy's program: the controller
// must report it.
func TestMissingProgram(t *testing.T) {
	eachProxy(t, func(t *testing.T, class, _ string) {
		m := newMesh(t, localmesh.Options{
			Manifests:   map[string]string{"mesh.yaml": strings.Replace(meshConfig, "envoy", class, 1)},
			ProxyImages: map[string]lab.Image{class: {}},
			Output: func(pod, container string) io.Writer {
				if container == "outrigger-proxy" {
					return t.Output()
				}
				return nil
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		started := make(chan error, 1)
		go func() { started <- m.Apply(ctx, "client.yaml", client) }()
		const want = `\"` + "%s" + `\": executable file not found`
		deadline := time.Now().Add(20 * time.Second)
		for {
			text, err := m.Debug(t.Context(), "/debug/proxy")
			if err == nil && strings.Contains(string(text), `"Failing"`) && strings.Contains(string(text), fmt.Sprintf(want, class)) {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("the controller's proxies are %s, %v; want one that fails since there is no program %s", text, err, class)
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		cancel()
		if err := <-started; err == nil {
			t.Error("the pod has started without its proxy")
		}
	})
}
