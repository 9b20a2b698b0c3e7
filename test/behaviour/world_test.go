package behaviour_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/lab"
	"github.com/outrigger-mesh/outrigger/internal/localmesh"
)

// world is a running town.
type world struct {
	*localmesh.Mesh
	apps map[string]*application
	logs *logs
}

// limit is how long anything may take to become true.
const limit = 20 * time.Second

// newWorld starts the town with clients and servers of the classes.
func newWorld(t *testing.T, programs localmesh.Programs, client, server string) *world {
	t.Helper()
	w := &world{apps: map[string]*application{}, logs: &logs{text: map[string]*bytes.Buffer{}}}
	mesh, err := localmesh.New(t.Context(), localmesh.Options{
		Dir: t.TempDir(),
		Manifests: map[string]string{
			"town.yaml":     fmt.Sprintf(townTemplate, client, server),
			"policies.yaml": policies,
			"mesh.yaml":     meshConfig("", ""),
		},
		Programs: programs,
		Hosts:    map[string][]netip.Addr{outsideHost: {netip.MustParseAddr(nodeAddress)}},
		Output:   w.logs.writer,
		Log:      slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Mesh = mesh
	t.Cleanup(func() {
		if err := mesh.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			w.logs.dump(t)
		}
	})
	for _, name := range []string{"shop/cart-v1", "shop/cart-v2", "shop/db-0", "shop/lone", "users/web"} {
		w.apps[name] = startApplication(t, w.pod(t, name))
	}
	if err := mesh.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) pod(t *testing.T, name string) *lab.Pod {
	t.Helper()
	pod := w.Pod(name)
	if pod == nil {
		t.Fatalf("there is no pod %s", name)
	}
	return pod
}

// apply writes manifests and takes them back at the test's end.
func (w *world) apply(t *testing.T, file, manifest string) {
	t.Helper()
	if err := w.Apply(t.Context(), file, manifest); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Delete(context.WithoutCancel(t.Context()), file); err != nil {
			t.Error(err)
		}
	})
}

// configure changes the MeshConfig until the test's end.
func (w *world) configure(t *testing.T, traffic, observability string) {
	t.Helper()
	if err := w.Apply(t.Context(), "mesh.yaml", meshConfig(traffic, observability)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Apply(context.WithoutCancel(t.Context()), "mesh.yaml", meshConfig("", "")); err != nil {
			t.Error(err)
		}
	})
}

// reply is what a client gets.
type reply struct {
	Status int
	Body   string
	Header http.Header
	answer
}

// request is what a client asks for.
type request struct {
	method, url string
	header      http.Header
	body        string
	// host is the Host header where it differs from the URL's.
	host string
	// timeout is the client's; 0 means 10 s.
	timeout time.Duration
}

// send asks from a pod, by a connection of its own.
func (w *world) send(from dialer, r request) (reply, error) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: from.Dial, DisableKeepAlives: true}}
	defer client.CloseIdleConnections()
	return w.sendBy(client, r)
}

func (w *world) sendBy(client *http.Client, r request) (reply, error) {
	if r.method == "" {
		r.method = http.MethodGet
	}
	ctx := context.Background()
	if r.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.timeout)
		defer cancel()
	}
	httpRequest, err := http.NewRequestWithContext(ctx, r.method, r.url, strings.NewReader(r.body))
	if err != nil {
		return reply{}, err
	}
	if r.header != nil {
		httpRequest.Header = r.header
	}
	httpRequest.Host = r.host
	response, err := client.Do(httpRequest)
	if err != nil {
		return reply{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return reply{}, err
	}
	out := reply{Status: response.StatusCode, Body: string(body), Header: response.Header}
	if response.StatusCode == http.StatusOK {
		_ = json.Unmarshal(body, &out.answer)
	}
	return out, nil
}

// get asks until the answer is as wanted, and fails the test with the last one if that
// does not come to be.
func (w *world) get(t *testing.T, from, url string, want func(reply) error) reply {
	t.Helper()
	return w.ask(t, from, request{url: url}, want)
}

func (w *world) ask(t *testing.T, from string, r request, want func(reply) error) reply {
	t.Helper()
	var last reply
	w.eventually(t, func() error {
		var err error
		if last, err = w.send(w.pod(t, from), r); err != nil {
			return fmt.Errorf("%s from %s: %w", r.url, from, err)
		}
		if err := want(last); err != nil {
			return fmt.Errorf("%s from %s: %w", r.url, from, err)
		}
		return nil
	})
	return last
}

// eventually waits until something is true.
func (w *world) eventually(t *testing.T, is func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := is()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// isStatus wants a status.
func isStatus(want int) func(reply) error {
	return func(r reply) error {
		if r.Status != want {
			return fmt.Errorf("the status is %d, want %d: %.200s", r.Status, want, r.Body)
		}
		return nil
	}
}

// isFrom wants an answer of the pod.
func isFrom(pod string) func(reply) error {
	return func(r reply) error {
		if r.Status != http.StatusOK || r.Pod != pod {
			return fmt.Errorf("the answer is %d of pod %q, want 200 of %s: %.200s", r.Status, r.Pod, pod, r.Body)
		}
		return nil
	}
}

var ok = isStatus(http.StatusOK)

// load asks from a pod, over a few connections, until its end is called.
type load struct {
	mu     sync.Mutex
	total  int
	failed []string
	pods   map[string]int
	stop   chan struct{}
	done   sync.WaitGroup
}

// startLoad begins to ask for the URL, with so many workers, each of which waits for
// an answer before it asks again. Every worker keeps its connection.
func (w *world) startLoad(from dialer, url string, workers int) *load {
	l := &load{pods: map[string]int{}, stop: make(chan struct{})}
	for range workers {
		l.done.Go(func() {
			client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: from.Dial}}
			defer client.CloseIdleConnections()
			for {
				select {
				case <-l.stop:
					return
				case <-time.After(2 * time.Millisecond):
				}
				r, err := w.sendBy(client, request{url: url})
				l.add(r, err)
			}
		})
	}
	return l
}

func (l *load) add(r reply, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total++
	switch {
	case err != nil:
		l.failed = append(l.failed, err.Error())
	case r.Status != http.StatusOK:
		l.failed = append(l.failed, fmt.Sprintf("%d %.200s", r.Status, r.Body))
	default:
		l.pods[r.Pod]++
	}
}

// count returns how many requests there were, and how many a pod has answered.
func (l *load) count(pod string) (total, ofPod int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total, l.pods[pod]
}

// more waits until so many more requests were made.
func (l *load) more(t *testing.T, n int) {
	t.Helper()
	begin, _ := l.count("")
	deadline := time.Now().Add(limit)
	for {
		if total, _ := l.count(""); total >= begin+n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("there were not %d more requests in %s", n, limit)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// end stops the load and fails the test if a request did not succeed.
func (l *load) end(t *testing.T) {
	t.Helper()
	close(l.stop)
	l.done.Wait()
	if len(l.failed) > 0 {
		t.Errorf("%d of %d requests failed, the first: %s", len(l.failed), l.total, l.failed[0])
	}
	if l.total == 0 {
		t.Error("there was no request")
	}
}

// logs keep what the containers write.
type logs struct {
	mu   sync.Mutex
	text map[string]*bytes.Buffer
}

func (l *logs) writer(pod, container string) io.Writer {
	return logWriter{l, pod + "/" + container}
}

type logWriter struct {
	*logs
	name string
}

func (w logWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.text[w.name] == nil {
		w.text[w.name] = new(bytes.Buffer)
	}
	return w.text[w.name].Write(p)
}

// of returns what a container has written.
func (l *logs) of(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text[name] == nil {
		return ""
	}
	return l.text[name].String()
}

// dump shows the end of what each container has written.
func (l *logs) dump(t *testing.T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, text := range l.text {
		lines := strings.Split(strings.TrimSpace(text.String()), "\n")
		lines = lines[max(0, len(lines)-5):]
		for i, line := range lines {
			lines[i] = line[:min(len(line), 1000)]
		}
		t.Logf("%s:\n%s", name, strings.Join(lines, "\n"))
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	fmt.Fprint(os.Stderr, string(p))
	return len(p), nil
}

// ownCertificate returns one that has nothing to do with the mesh.
func ownCertificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "own"}, DNSNames: []string{"own.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// line dials, sends what there is to send, and returns the first line that comes.
func line(from dialer, address, send string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := from.Dial(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(conn, send); err != nil {
		return "", err
	}
	var got []byte
	for one := make([]byte, 1); ; {
		if _, err := conn.Read(one); err != nil {
			return string(got), err
		}
		got = append(got, one[0])
		if one[0] == '\n' {
			return string(got), nil
		}
	}
}

// isClosed reports whether an error says that the other end has closed.
func isClosed(err error) bool {
	var timeout net.Error
	return err != nil && (!errors.As(err, &timeout) || !timeout.Timeout())
}
