package localmesh_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// TestThreads checks that Pipy is started with the number of worker threads of the pod, the
// mesh or the CPU limit, up to the machine's number of CPUs.
func TestThreads(t *testing.T) {
	if err := programs(t).Missing["pipy"]; err != nil {
		t.Skip("SKIPPED: ", err)
	}
	const concurrency, limit = "sidecar-concurrency", "sidecar-resource-limits-cpu"
	type pod struct {
		annotation, value string
		want              int
	}
	for ofMesh, pods := range map[int]map[string]pod{
		0: {
			"nothing": {want: 2},
			"limit":   {limit, "1", 1},
			"part":    {limit, "1500m", 2},
			"one":     {concurrency, "1", 1},
			"many":    {concurrency, "256", 256},
		},
		1: {
			"other": {want: 1},
			"wide":  {limit, "2", 1},
			"wins":  {concurrency, "2", 2},
			"again": {concurrency, "0", 2},
		},
	} {
		t.Run(fmt.Sprint(ofMesh), func(t *testing.T) {
			manifests := map[string]string{
				"mesh.yaml": strings.Replace(meshConfig, "sidecarClass: envoy", "sidecarClass: pipy, concurrency: "+strconv.Itoa(ofMesh), 1),
			}
			for name, pod := range pods {
				annotations := "{}"
				if pod.annotation != "" {
					annotations = fmt.Sprintf("{openservicemesh.io/%s: %q}", pod.annotation, pod.value)
				}
				manifests[name+".yaml"] = strings.Replace(client, "{name: client, namespace: shop}", fmt.Sprintf("{name: %s, namespace: shop, annotations: %s}", name, annotations), 1)
			}
			m := newMesh(t, localmesh.Options{Manifests: manifests})
			if err := m.WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, name := range slices.Sorted(maps.Keys(pods)) {
				pids, err := m.Pod("shop/" + name).Container("outrigger-proxy").PIDs("pipy")
				if err != nil || len(pids) != 1 {
					t.Fatalf("pod %s has the Pipys %v, %v", name, pids, err)
				}
				command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pids[0]))
				if err != nil {
					t.Fatal(err)
				}
				if want := fmt.Sprint("--threads=", min(pods[name].want, runtime.NumCPU())); !slices.Contains(strings.Split(string(bytes.TrimRight(command, "\x00")), "\x00"), want) {
					t.Errorf("pod %s has Pipy started by %q, want %s", name, command, want)
				}
			}
		})
	}
}
