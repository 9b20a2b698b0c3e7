package behaviour

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// sample is a line of a page of metrics.
type sample struct {
	// series is the name with the labels, as exported.
	series string
	name   string
	labels map[string]string
	value  float64
}

// page is what a sidecar exports.
type page []sample

var sampleLabel = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"`)

// metrics reads the metrics of a pod, as Prometheus does from outside the mesh.
func (w *testMesh) metrics(t *testing.T, pod string) page {
	t.Helper()
	url := "http://" + net.JoinHostPort(w.pod(t, pod).Addresses()[0].String(), strconv.Itoa(driver.MetricsPort)) + driver.MetricsPath
	var out page
	for text := range strings.Lines(w.ask(t, "plain/outsider", request{url: url}, ok).Body) {
		text = strings.TrimSpace(text)
		at := strings.LastIndexByte(text, ' ')
		if at < 0 || text[0] == '#' {
			continue
		}
		value, err := strconv.ParseFloat(text[at+1:], 64)
		if err != nil {
			continue
		}
		s := sample{series: text[:at], value: value}
		var labels string
		s.name, labels, _ = strings.Cut(s.series, "{")
		// Only the samples of all proxies are asked for by label. A page has many more.
		if strings.HasPrefix(s.name, "outrigger_") {
			s.labels = map[string]string{}
			for _, label := range sampleLabel.FindAllStringSubmatch(labels, -1) {
				s.labels[label[1]] = label[2]
			}
		}
		out = append(out, s)
	}
	return out
}

// sum adds up the samples of a metric with the labels.
func (p page) sum(name string, labels map[string]string) float64 {
	total := 0.0
	for _, s := range p {
		matches := s.name == name
		for label, value := range labels {
			matches = matches && s.labels[label] == value
		}
		if matches {
			total += s.value
		}
	}
	return total
}

// isComplete returns an error if the page does not begin with the metrics of all proxies, if
// one of them lacks a label, or if nothing of the proxy's own follows.
func (p page) isComplete() error {
	common := 0
	for ; common < len(p) && strings.HasPrefix(p[common].name, "outrigger_"); common++ {
	}
	if common == 0 || common == len(p) {
		return fmt.Errorf("of %d samples the first %d are of all proxies, want some before and after", len(p), common)
	}
	for _, s := range p[:common] {
		for _, label := range telemetry.Labels() {
			if _, ok := s.labels[label]; !ok {
				return fmt.Errorf("%s has no label %s", s.name, label)
			}
		}
	}
	return nil
}

// counted is how much a metric of a pod must grow.
type counted struct {
	pod, name string
	labels    map[string]string
	by        float64
}

// counts checks that what the function does is counted exactly.
func (w *testMesh) counts(t *testing.T, do func(), want ...counted) {
	t.Helper()
	var pods []string
	for _, c := range want {
		pods = append(pods, c.pod)
	}
	before := w.quietMetrics(t, pods...)
	do()
	w.eventuallyWithin(t, time.Minute, func() error { return w.haveGrown(t, before, want...) })
}

// haveGrown compares the metrics of pods with those before.
func (w *testMesh) haveGrown(t *testing.T, before map[string]page, want ...counted) error {
	t.Helper()
	now := map[string]page{}
	var problems []error
	for _, c := range want {
		if now[c.pod] == nil {
			now[c.pod] = w.metrics(t, c.pod)
		}
		if grown := now[c.pod].sum(c.name, c.labels) - before[c.pod].sum(c.name, c.labels); grown != c.by {
			problems = append(problems, fmt.Errorf("%s%v of %s has grown by %v, want %v; there are %v", c.name, c.labels, c.pod, grown, c.by, now[c.pod].grown(before[c.pod])))
		}
	}
	return errors.Join(problems...)
}

// grown lists the samples of all proxies that have grown.
func (p page) grown(before page) []string {
	former := map[string]float64{}
	for _, s := range before {
		former[s.series] = s.value
	}
	var out []string
	for _, s := range p {
		if by := s.value - former[s.series]; by != 0 && strings.HasPrefix(s.name, "outrigger_") && !strings.HasSuffix(s.name, "_bucket") {
			out = append(out, fmt.Sprintf("%s+%v", s.series, by))
		}
	}
	return out
}

// quietMetrics returns the metrics of pods once they have counted everything that is over:
// proxies may pass counts on once a second.
func (w *testMesh) quietMetrics(t *testing.T, pods ...string) map[string]page {
	t.Helper()
	const quiet = 2500 * time.Millisecond
	var last map[string]page
	var since time.Time
	w.eventuallyWithin(t, time.Minute, func() error {
		asked := time.Now()
		now, changed := map[string]page{}, last == nil
		for _, pod := range pods {
			if now[pod] == nil {
				now[pod] = w.metrics(t, pod)
				changed = changed || len(now[pod].grown(last[pod])) > 0
			}
		}
		if changed {
			last, since = now, asked
		}
		if asked.Sub(since) < quiet {
			return fmt.Errorf("the metrics of %v still change", pods)
		}
		return nil
	})
	return last
}

// labelled returns labels with more of them.
func labelled(labels map[string]string, more ...string) map[string]string {
	out := maps.Clone(labels)
	for i := 0; i < len(more); i += 2 {
		out[more[i]] = more[i+1]
	}
	return out
}

// The two ends of what users/web sends to cart-v1.
func (w *testMesh) ends(protocol string) (source, destination map[string]string) {
	both := map[string]string{
		telemetry.LabelSourceNamespace: "users", telemetry.LabelSourceServiceAccount: "web",
		telemetry.LabelDestinationNamespace: "shop", telemetry.LabelDestinationServiceAccount: "cart-v1",
		telemetry.LabelProtocol: protocol,
	}
	return labelled(both, telemetry.LabelReporter, telemetry.ReporterSource, telemetry.LabelClass, w.Client,
			telemetry.LabelSourceWorkload, "web", telemetry.LabelDestinationService, "cart-v1"),
		labelled(both, telemetry.LabelReporter, telemetry.ReporterDestination, telemetry.LabelClass, w.Server,
			telemetry.LabelDestinationWorkload, "cart-v1")
}

// testCounts sends requests and connections of each kind.
func testCounts(t *testing.T, w *testMesh) {
	const client, server = "users/web", "shop/cart-v1"
	// All threads of the proxies must have forgotten the row before.
	w.inTurn(t, 20, client, request{url: cartV1}, ok)
	source, destination := w.ends(telemetry.HTTP)
	success := []string{telemetry.LabelResponseCode, "200", telemetry.LabelGRPCStatus, "", telemetry.LabelTLS, telemetry.MutualTLS}
	w.counts(t, func() {
		for range 20 {
			w.once(t, client, http.StatusOK, request{url: cartV1})
		}
	},
		counted{client, telemetry.Requests, labelled(source, success...), 20},
		counted{client, telemetry.Requests, nil, 20},
		counted{server, telemetry.Requests, labelled(destination, success...), 20},
		counted{server, telemetry.Requests, nil, 20},
		counted{client, telemetry.RequestDuration + "_count", source, 20},
		counted{server, telemetry.RequestDuration + "_count", destination, 20},
		counted{server, telemetry.RequestDuration + "_bucket", labelled(destination, "le", "+Inf"), 20},
		counted{client, telemetry.Denied, nil, 0},
		counted{server, telemetry.Denied, nil, 0},
	)
	for _, pod := range []string{client, server} {
		if err := w.metrics(t, pod).isComplete(); err != nil {
			t.Errorf("the metrics of %s: %v", pod, err)
		}
	}

	body := strings.Repeat("x", 1000)
	w.counts(t, func() {
		for range 3 {
			w.once(t, client, http.StatusOK, request{method: http.MethodPut, url: cartV1 + "/items", body: body})
		}
	},
		counted{client, telemetry.Requests, labelled(source, success...), 3},
		counted{server, telemetry.Requests, labelled(destination, success...), 3},
	)

	// A client that the application knows by its TCP connections only.
	source, destination = w.ends(telemetry.TCP)
	w.counts(t, func() {
		for range 4 {
			if got, err := line(w.pod(t, client), "cart-v1.shop:9000", "echo\n"); err != nil || got != "echo\n" {
				t.Errorf("%q, %v", got, err)
			}
		}
	},
		counted{client, telemetry.Connections, labelled(source, telemetry.LabelTLS, telemetry.MutualTLS), 4},
		counted{server, telemetry.Connections, labelled(destination, telemetry.LabelTLS, telemetry.MutualTLS), 4},
		counted{client, telemetry.ReceivedBytes, source, 20},
		counted{server, telemetry.ReceivedBytes, destination, 20},
		counted{client, telemetry.SentBytes, source, 20},
		counted{server, telemetry.SentBytes, destination, 20},
	)
}

// testCountsOfOpenConnections reads the counts while a connection is open, and after it.
func testCountsOfOpenConnections(t *testing.T, w *testMesh) {
	const client, server = "users/web", "shop/cart-v1"
	const late = 10 * time.Second
	if got, err := line(w.pod(t, client), "cart-v1.shop:9000", "echo\n"); err != nil || got != "echo\n" {
		t.Fatalf("%q, %v", got, err)
	}
	before := w.quietMetrics(t, client, server)
	source, destination := w.ends(telemetry.TCP)
	mutual := []string{telemetry.LabelTLS, telemetry.MutualTLS}
	expect := func(within time.Duration, bytes float64) {
		t.Helper()
		w.eventuallyWithin(t, within, func() error {
			return w.haveGrown(t, before,
				counted{client, telemetry.Connections, labelled(source, mutual...), 1},
				counted{client, telemetry.ReceivedBytes, source, bytes},
				counted{client, telemetry.SentBytes, source, bytes},
				counted{server, telemetry.Connections, labelled(destination, mutual...), 1},
				counted{server, telemetry.ReceivedBytes, destination, bytes},
				counted{server, telemetry.SentBytes, destination, bytes},
			)
		})
	}
	conn, err := w.pod(t, client).Dial(t.Context(), "tcp", "cart-v1.shop:9000")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	reader := bufio.NewReader(conn)
	echo := func(text string) {
		t.Helper()
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		if got, err := reader.ReadString('\n'); err != nil || got != text {
			t.Fatalf("%d bytes come back, %v, want %d", len(got), err, len(text))
		}
	}
	echo(strings.Repeat("a", 99) + "\n")
	expect(late, 100)
	echo(strings.Repeat("b", 99_899) + "\n")
	expect(late, 100_000)
	echo("c\n")
	conn.Close()
	expect(time.Minute, 100_002)
	time.Sleep(late)
	if err := w.haveGrown(t, before, counted{client, telemetry.Connections, nil, 1}, counted{server, telemetry.Connections, nil, 1}); err != nil {
		t.Error(err)
	}
}

// once sends one request, which is counted.
func (w *testMesh) once(t *testing.T, from string, want int, r request) {
	t.Helper()
	if got, err := w.send(w.pod(t, from), r); err != nil || got.Status != want {
		t.Errorf("%s from %s: %d, %v, want %d", r.url, from, got.Status, err, want)
	}
}

// testCountsOfGRPC calls a method that succeeds.
func testCountsOfGRPC(t *testing.T, w *testMesh) {
	const client, server = "users/web", "shop/cart-v1"
	w.eventually(t, func() error { return w.rpc(t, client) })
	source, destination := w.ends(telemetry.GRPC)
	w.counts(t, func() {
		for range 5 {
			if err := w.rpc(t, client); err != nil {
				t.Error(err)
			}
		}
	},
		counted{client, telemetry.Requests, labelled(source, telemetry.LabelResponseCode, "200", telemetry.LabelTLS, telemetry.MutualTLS), 5},
		counted{server, telemetry.Requests, labelled(destination, telemetry.LabelResponseCode, "200", telemetry.LabelTLS, telemetry.MutualTLS), 5},
	)
}

// rpc calls a method until it ends with a status.
func (w *testMesh) rpc(t *testing.T, from string) error {
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
	message := []byte("message")
	if err := errors.Join(s.SendMsg(&message), s.RecvMsg(&message), s.CloseSend()); err != nil {
		return err
	}
	if err := s.RecvMsg(&message); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the stream ends with %w", err)
	}
	return nil
}

// testDenials lets sidecars refuse requests and connections for different reasons.
func testDenials(t *testing.T, w *testMesh) {
	const server = "shop/cart-v1"
	destination := map[string]string{
		telemetry.LabelReporter: telemetry.ReporterDestination, telemetry.LabelDestinationWorkload: "cart-v1",
		telemetry.LabelDestinationNamespace: "shop", telemetry.LabelDestinationServiceAccount: "cart-v1",
	}
	thief := labelled(destination, telemetry.LabelSourceNamespace, "users", telemetry.LabelSourceServiceAccount, "thief", telemetry.LabelProtocol, telemetry.HTTP)
	w.get(t, "users/thief", "http://cart-v1.shop/window", isFrom("cart-v1"))
	// All threads of the proxies must have forgotten the row before.
	w.inTurn(t, 20, "users/thief", request{url: cartV1}, isStatus(http.StatusForbidden))
	w.counts(t, func() {
		for range 6 {
			w.once(t, "users/thief", http.StatusForbidden, request{url: cartV1})
		}
	},
		counted{server, telemetry.Denied, labelled(thief, telemetry.LabelReason, telemetry.ReasonAccess), 6},
		counted{server, telemetry.Requests, labelled(thief, telemetry.LabelResponseCode, "403"), 6},
		counted{"users/thief", telemetry.Requests, map[string]string{telemetry.LabelResponseCode: "403"}, 6},
		// Its own sidecar has refused nothing.
		counted{"users/thief", telemetry.Denied, nil, 0},
	)
	w.counts(t, func() {
		for range 3 {
			w.intrudes(t, "9000", w.certificate(t, thiefIdentity))
		}
	},
		counted{server, telemetry.Denied, labelled(destination, telemetry.LabelProtocol, telemetry.TCP, telemetry.LabelReason, telemetry.ReasonAccess), 3},
		counted{server, telemetry.Connections, nil, 0},
	)
	w.counts(t, func() {
		for range 3 {
			conn, err := w.pod(t, "plain/outsider").Dial(t.Context(), "tcp", net.JoinHostPort(w.pod(t, server).Addresses()[0].String(), "8080"))
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			_, _ = io.WriteString(conn, "GET /cart HTTP/1.1\r\nHost: cart-v1.shop\r\n\r\n")
			_, _ = io.Copy(io.Discard, conn)
			conn.Close()
		}
	},
		counted{server, telemetry.Denied, labelled(destination, telemetry.LabelSourceServiceAccount, "", telemetry.LabelReason, telemetry.ReasonPlaintext), 3},
	)
}

// intrudes connects to a port of cart-v1 with a certificate of the mesh, bypassing any
// client's sidecar, and expects to be refused.
func (w *testMesh) intrudes(t *testing.T, port string, certificate tls.Certificate) {
	t.Helper()
	conn, err := w.pod(t, "plain/outsider").Dial(t.Context(), "tcp", net.JoinHostPort(w.pod(t, "shop/cart-v1").Addresses()[0].String(), port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	secure := tls.Client(conn, w.meshTLSOf(t, certificate))
	if _, err := io.WriteString(secure, "echo\n"); err != nil {
		return
	}
	if n, _ := io.Copy(io.Discard, secure); n > 0 {
		t.Errorf("the server has answered with %d bytes", n)
	}
}
