package behaviour

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// observability is the table of probes, metrics, logs and traces.
var observability = []Row{
	{"Probes through the agent", "The agent answers the kubelet's HTTP, HTTPS, TCP and gRPC probes of every container by probing the application.", ofEvery, testProbes},
	{"Counts of requests", "Both sidecars count each request and connection exactly, with the other's identity, under the names that are the same for every proxy.", ofEvery, testCounts},
	{"Counts of open connections", "Both sidecars count a TCP connection and its bytes at most ten seconds late while it is open, and nothing twice when it ends.", ofBoth(mesh.FeatureOpenConnections), testCountsOfOpenConnections},
	{"Counts of gRPC", "Both sidecars count each call of gRPC as one.", ofBoth(mesh.FeatureHTTP2), testCountsOfGRPC},
	{"Counts of refusals", "A sidecar counts each request and connection that it refuses, with the reason and, where the caller is verified, its identity.", ofEvery, testDenials},
	{"Audit of policies", "In permissive mode a server's sidecar counts each request and connection that audited policies would refuse, and lets it through. What they allow is not counted.", ofServer(mesh.FeatureAudit), testAudit},
	{"Audit of plaintext", "Where plaintext is accepted, an audit counts callers in plaintext, whom policies would refuse.", ofServer(mesh.FeatureAudit, mesh.FeaturePermissiveTLS), testAuditOfPlaintext},
	{"Metrics", "Each proxy's metrics can be scraped at port 15010 and count requests.", ofEvery, testMetrics},
	{"Access logs", "Both proxies write a JSON object for each request, with the same field names and the identity of the peer.", ofBoth(mesh.FeatureAccessLogs), testAccessLogs},
	{"Access logs of errors or a share", "The MeshConfig limits access logs to errors, to a share of the other requests, or turns them off, and refused requests are counted all the same.", ofBoth(mesh.FeatureAccessLogs, mesh.FeatureAccessLogSampling), testAccessLogLevels},
	{"Reasons of refusals", "The line of a request or connection that a sidecar refuses has the reason under which it is counted.", ofBoth(mesh.FeatureAccessLogs), testReasons},
	{"Traces", "Both proxies send spans of one trace to the collector.", ofBoth(mesh.FeatureZipkinTracing), testTraces},
	{"Forged records", "A client, a server or a peer without a sidecar cannot forge what a sidecar records: headers from which proxies take it are removed first at either end, and appear in no access log, metric or span, nor at the other end. Values that records contain are escaped.", Needs{
		Client: []mesh.Feature{mesh.FeatureAccessLogs, mesh.FeatureZipkinTracing, mesh.FeatureRetries},
		Server: []mesh.Feature{mesh.FeatureAccessLogs, mesh.FeatureZipkinTracing},
	}, testForgery},
	{"Traces by OTLP", "Both proxies send spans of one trace to OpenTelemetry's collector.", ofBoth(mesh.FeatureOTLPTracing), testOTLPTraces},
}

// testProbes probes as the kubelet does.
func testProbes(t *testing.T, w *testMesh) {
	pod := w.pod(t, "shop/cart-v1")
	probes := 0
	for _, c := range pod.Object().Spec.Containers {
		for _, probe := range []*probeOf{probeURL(c.LivenessProbe), probeURL(c.ReadinessProbe), probeURL(c.StartupProbe)} {
			if probe == nil || c.Name == "outrigger-proxy" {
				continue
			}
			probes++
			url := "http://" + net.JoinHostPort(pod.Addresses()[0].String(), probe.port) + probe.path
			w.repeat(t, url+" of container "+c.Name, ok, func() (reply, error) {
				return w.send(w.Lab().Node(), request{url: url, header: probe.header})
			})
		}
	}
	if probes != 4 {
		t.Errorf("%d probes were found, want 4", probes)
	}
	// The probes must reach the application.
	app := w.apps["shop/cart-v1"]
	if app.count("/probe/http") == 0 || app.count("/probe/https") == 0 {
		t.Error("the application was not probed")
	}
	app.setBroken(http.StatusInternalServerError)
	defer app.setBroken(0)
	probe := probeURL(pod.Object().Spec.Containers[0].LivenessProbe)
	r, err := w.send(w.Lab().Node(), request{url: "http://" + net.JoinHostPort(pod.Addresses()[0].String(), probe.port) + probe.path})
	if err != nil || r.Status < 400 {
		t.Errorf("the probe of a broken application is answered with %d, %v", r.Status, err)
	}
}

// probeOf is a probe as the kubelet sends it.
type probeOf struct {
	port, path string
	header     map[string][]string
}

// probeURL returns the HTTP probe that the kubelet would send; all probes of injected
// pods are HTTP.
func probeURL(p *corev1.Probe) *probeOf {
	if p == nil || p.HTTPGet == nil {
		return nil
	}
	out := &probeOf{port: p.HTTPGet.Port.String(), path: p.HTTPGet.Path, header: map[string][]string{}}
	for _, h := range p.HTTPGet.HTTPHeaders {
		out.header[h.Name] = append(out.header[h.Name], h.Value)
	}
	return out
}

// testMetrics checks that a counter of requests grows.
func testMetrics(t *testing.T, w *testMesh) {
	const requests = 20
	for _, pod := range []string{"users/web", "shop/cart-v1"} {
		url := "http://" + w.address(t, pod, "15010") + "/stats/prometheus"
		scrape := func() map[string]float64 {
			return samples(w.ask(t, "plain/outsider", request{url: url}, ok).Body)
		}
		before := scrape()
		for range requests {
			w.get(t, "users/web", cartV1, ok)
		}
		w.eventually(t, func() error {
			for name, now := range scrape() {
				if strings.Contains(name, "_rq_") || strings.Contains(name, "request") {
					if now-before[name] >= requests {
						return nil
					}
				}
			}
			return fmt.Errorf("of %s no count of requests has grown by %d", pod, requests)
		})
	}
}

// samples parses Prometheus' text format into values by name and labels.
func samples(page string) map[string]float64 {
	all := map[string]float64{}
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if value, err := strconv.ParseFloat(line[at+1:], 64); err == nil {
			all[line[:at]] = value
		}
	}
	return all
}

// testAccessLogs looks for one request in the output of both proxies.
func testAccessLogs(t *testing.T, w *testMesh) {
	w.ask(t, "users/web", request{url: cartV1 + "/logged", header: http.Header{"User-Agent": {"behaviour"}}}, isFrom("cart-v1"))
	for pod, peer := range map[string]struct{ field, identity string }{
		"users/web":    {"upstream_peer", "spiffe://cluster.local/ns/shop/sa/cart-v1"},
		"shop/cart-v1": {"downstream_peer", webIdentity.String()},
	} {
		w.eventually(t, func() error {
			err := errors.New("it is not there")
			for line := range strings.Lines(w.logs.of(pod + "/outrigger-proxy")) {
				var entry map[string]any
				if json.Unmarshal([]byte(line), &entry) != nil || entry["path"] != "/cart/logged" {
					continue
				}
				want := map[string]any{"method": "GET", "path": "/cart/logged", "authority": "cart-v1.shop", "response_code": "200", "user_agent": "behaviour", peer.field: peer.identity}
				err = nil
				for field, value := range want {
					// Proxies may write numbers as numbers or strings.
					if fmt.Sprint(entry[field]) != value {
						err = errors.Join(err, fmt.Errorf("its %s is %v, want %v", field, entry[field], value))
					}
				}
				if entry["duration"] == nil || entry["start_time"] == nil {
					err = errors.Join(err, fmt.Errorf("it has no times: %s", line))
				}
			}
			if err != nil {
				return fmt.Errorf("the request in the log of %s: %w", pod, err)
			}
			return nil
		})
	}
}
