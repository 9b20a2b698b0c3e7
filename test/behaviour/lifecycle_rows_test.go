package behaviour_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// observability is what can be seen from outside.
var observability = []row{
	{"Probes through the agent", "The kubelet's HTTP, HTTPS, TCP and gRPC probes of every container are answered by the agent, which asks the application.", testProbes},
	{"Metrics", "Each proxy's metrics can be scraped at port 15010.", func(t *testing.T, w *world) {
		w.get(t, "users/web", cartV1, ok)
		for _, pod := range []string{"users/web", "shop/cart-v1"} {
			url := "http://" + net.JoinHostPort(w.pod(t, pod).Addresses()[0].String(), "15010") + "/stats/prometheus"
			w.eventually(t, func() error {
				r, err := w.send(w.Lab().Node(), request{url: url})
				if err != nil || r.Status != http.StatusOK {
					return fmt.Errorf("%d, %v", r.Status, err)
				}
				if !strings.Contains(r.Body, `envoy_response_code="200"`) && !strings.Contains(r.Body, "_rq_") {
					return fmt.Errorf("no requests are counted in %.300s", r.Body)
				}
				return nil
			})
		}
	}},
	{"Traces", "Both proxies send spans of one trace to the collector.", testTraces},
}

// lifecycle is what happens when something changes or ends.
var lifecycle = []row{
	{"The controller is killed", "Requests go on without the controller, and when it is back no proxy is sent what it has.", testControllerKilled},
	{"The proxy is killed", "A proxy that dies is started again by its agent.", func(t *testing.T, w *world) {
		w.get(t, "users/web", cartV1, ok)
		container := w.pod(t, "shop/cart-v1").Container("outrigger-proxy")
		before := container.Restarts()
		pids, err := container.PIDs(proxyProgram)
		if err != nil || len(pids) != 1 {
			t.Fatalf("the proxy is processes %v, %v", pids, err)
		}
		if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		w.get(t, "users/web", cartV1, isFrom("cart-v1"))
		if container.Restarts() != before {
			t.Error("the container was restarted, want that the agent restarts the proxy")
		}
	}},
	{"The agent is killed", "A sidecar whose agent dies is restarted with it.", func(t *testing.T, w *world) {
		container := w.pod(t, "shop/cart-v1").Container("outrigger-proxy")
		before := container.Restarts()
		if err := container.Kill(); err != nil {
			t.Fatal(err)
		}
		w.eventually(t, func() error {
			if container.Restarts() == before {
				return errors.New("the container was not restarted")
			}
			return nil
		})
		w.get(t, "users/web", cartV1, isFrom("cart-v1"))
	}},
	{"Certificates are renewed", "Certificates are renewed while requests run, and none of them fails.", testRenewal},
	{"The root is rotated", "The mesh moves to another root while requests run, and none of them fails.", testRotation},
}

// testStreaming has messages go both ways.
func testStreaming(t *testing.T, w *world) {
	stream := func(from string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		conn, err := grpc.NewClient("passthrough:///cart-v1.shop:50051", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				return w.pod(t, from).Dial(ctx, "tcp", address)
			}), grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
		if err != nil {
			return err
		}
		defer conn.Close()
		s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/town.Cart/Echo")
		if err != nil {
			return err
		}
		for i := range 5 {
			sent := fmt.Appendf(nil, "message %d", i)
			var got []byte
			if err := s.SendMsg(&sent); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			if err := s.RecvMsg(&got); err != nil {
				return err
			}
			if string(got) != string(sent) {
				return fmt.Errorf("%q comes back as %q", sent, got)
			}
		}
		return nil
	}
	w.eventually(t, func() error { return stream("users/web") })
	if err := stream("users/thief"); err == nil || !strings.Contains(err.Error(), "PermissionDenied") {
		t.Errorf("the thief gets %v, want PermissionDenied", err)
	}
}

// testProbes asks as the kubelet does.
func testProbes(t *testing.T, w *world) {
	pod := w.pod(t, "shop/cart-v1")
	probes := 0
	for _, c := range pod.Object().Spec.Containers {
		for _, probe := range []*probeOf{probeURL(c.LivenessProbe), probeURL(c.ReadinessProbe), probeURL(c.StartupProbe)} {
			if probe == nil || c.Name == "outrigger-proxy" {
				continue
			}
			probes++
			url := "http://" + net.JoinHostPort(pod.Addresses()[0].String(), probe.port) + probe.path
			w.eventually(t, func() error {
				r, err := w.send(w.Lab().Node(), request{url: url, header: probe.header})
				if err != nil || r.Status != http.StatusOK {
					return fmt.Errorf("%s of container %s: %d %s %v", url, c.Name, r.Status, r.Body, err)
				}
				return nil
			})
		}
	}
	if probes != 4 {
		t.Errorf("%d probes were found, want 4", probes)
	}
	// It is the application that is asked.
	app := w.apps["shop/cart-v1"]
	if app.count("/probe/http") == 0 || app.count("/probe/https") == 0 {
		t.Error("the application was not asked")
	}
	app.setBroken(http.StatusInternalServerError)
	defer app.setBroken(0)
	probe := probeURL(pod.Object().Spec.Containers[0].LivenessProbe)
	r, err := w.send(w.Lab().Node(), request{url: "http://" + net.JoinHostPort(pod.Addresses()[0].String(), probe.port) + probe.path})
	if err != nil || r.Status < 400 {
		t.Errorf("the probe of a broken application is answered with %d, %v", r.Status, err)
	}
}

// testTraces collects spans as Zipkin does.
func testTraces(t *testing.T, w *world) {
	const node = nodeAddress
	listener, err := w.Lab().Node().Listen(t.Context(), "tcp", net.JoinHostPort(node, "9411"))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	services := map[string]map[string]bool{}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		var spans []struct {
			TraceID       string `json:"traceId"`
			LocalEndpoint struct {
				ServiceName string `json:"serviceName"`
			} `json:"localEndpoint"`
		}
		if err := json.NewDecoder(r.Body).Decode(&spans); err == nil {
			mu.Lock()
			for _, s := range spans {
				if services[s.TraceID] == nil {
					services[s.TraceID] = map[string]bool{}
				}
				services[s.TraceID][s.LocalEndpoint.ServiceName] = true
			}
			mu.Unlock()
		}
		out.WriteHeader(http.StatusAccepted)
	})}
	go server.Serve(listener)
	defer server.Close()
	w.configure(t, "", `tracing: {enable: true, address: "`+node+`", port: 9411, sampledFraction: "1.0"}`)
	w.eventually(t, func() error {
		if _, err := w.send(w.pod(t, "users/web"), request{url: cartV1}); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, of := range services {
			if len(of) >= 2 {
				return nil
			}
		}
		return fmt.Errorf("no trace has spans of two proxies: %v", services)
	})
}

// certificateOf returns the certificate that a pod's server shows.
func (w *world) certificateOf(t *testing.T, pod string) (*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	conn, err := w.Lab().Node().Dial(ctx, "tcp", net.JoinHostPort(w.pod(t, pod).Addresses()[0].String(), "8080"))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var leaf *x509.Certificate
	client := tls.Client(conn, &tls.Config{
		ServerName: "cart-v1.shop.sa.cluster.local", InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			leaf = state.PeerCertificates[0]
			return nil
		},
	})
	// That the server wants a certificate of us comes after it has shown its own.
	_ = client.HandshakeContext(ctx)
	if leaf == nil {
		return nil, errors.New("no certificate was shown")
	}
	return leaf, nil
}

func testRenewal(t *testing.T, w *world) {
	w.shortLives(t)
	l := w.startLoad(w.pod(t, "users/web"), cartV1, 4)
	seen := map[string]bool{}
	w.eventuallyWithin(t, 90*time.Second, func() error {
		leaf, err := w.certificateOf(t, "shop/cart-v1")
		if err != nil {
			return err
		}
		if seen[leaf.SerialNumber.String()] = true; len(seen) < 4 {
			return fmt.Errorf("%d certificates were shown, want 4", len(seen))
		}
		return nil
	})
	l.end(t)
}
