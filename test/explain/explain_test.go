package explain_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/internal/cli"
	"github.com/outrigger-mesh/outrigger/internal/explain"
	generated "github.com/outrigger-mesh/outrigger/test/explain"
	"github.com/outrigger-mesh/outrigger/test/lab"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

var (
	firstSeed = flag.Uint64("seed", 1, "the first seed")
	seeds     = flag.Int("seeds", 1, "how many towns there are, one after the other, of as many seeds")
	rounds    = flag.Int("rounds", 4, "how many policies each town gets, one after the other")
	questions = flag.Int("questions", 40, "how many questions are asked in each round")
	classes   = flag.String("classes", "envoy", "the classes of the sidecars, with commas between them")
)

func TestMain(m *testing.M) {
	lab.Enter()
	m.Run()
}

// TestExplainIsTrue compares the answers of explain with those of real proxies.
func TestExplainIsTrue(t *testing.T) {
	if err := lab.Available(); errors.Is(err, lab.ErrUnavailable) {
		t.Skip("SKIPPED: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	programs, err := localmesh.BuildPrograms(t.Context(), t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	for class := range strings.SplitSeq(*classes, ",") {
		if programs.Proxies[class] == "" {
			t.Skipf("SKIPPED: class %s: %v", class, programs.Missing[class])
		}
	}
	for i := range *seeds {
		seed := *firstSeed + uint64(i)
		t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) { askTown(t, programs, seed) })
	}
}

// town is a running mesh.
type town struct {
	*localmesh.Mesh
	asked, skipped map[explain.Verdict]int
	// met counts the compared answers that contain each landmark.
	met map[string]int
}

// landmarks are reasons that an answer may give, besides rules about callers.
var landmarks = []string{"IngressBackend shop/in allows", "IngressBackend shop/in-by-name allows", "retried up to", "rate limits of each endpoint"}

func askTown(t *testing.T, programs localmesh.Programs, seed uint64) {
	g := generated.NewGenerator(seed, strings.Split(*classes, ","))
	outside := netip.MustParseAddr(generated.OutsideAddress)
	hosts := map[string][]netip.Addr{}
	for _, name := range []string{generated.OutsideHost, "mail.users", "mail.users.svc", "mail.users.svc.cluster.local"} {
		hosts[name] = []netip.Addr{outside}
	}
	policies := g.Policies()
	townManifest := g.Town()
	mesh, err := localmesh.New(t.Context(), localmesh.Options{
		Dir:       t.TempDir(),
		Manifests: map[string]string{"town.yaml": townManifest, "policies.yaml": policies},
		Programs:  programs, Hosts: hosts,
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mesh.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &town{Mesh: mesh, asked: map[explain.Verdict]int{}, skipped: map[explain.Verdict]int{}, met: map[string]int{}}
	for _, pod := range mesh.Pods() {
		serve(t, mesh.Pod(pod), pod)
	}
	serveHTTP(t, mesh.Lab().Node(), net.JoinHostPort(generated.OutsideAddress, strconv.Itoa(generated.OutsidePort)), "outside")
	serveTLS(t, mesh.Lab().Node(), net.JoinHostPort(generated.OutsideAddress, strconv.Itoa(generated.OutsideTLSPort)))
	if err := mesh.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	for round := range *rounds {
		if round > 0 {
			policies = g.Policies()
			if err := mesh.Apply(t.Context(), "policies.yaml", policies); err != nil {
				t.Fatal(err)
			}
		}
		// Results of the former policies must not be taken for current ones.
		time.Sleep(2 * time.Second)
		failed := false
		for _, q := range g.Questions(*questions, func(pod string) string { return mesh.Pod(pod).Addresses()[0].String() }) {
			if err := w.compare(t.Context(), q); err != nil {
				failed = true
				t.Errorf("round %d: %s: %v", round, q, err)
			}
		}
		if failed {
			t.Logf("the policies of round %d:\n%s", round, policies)
		}
	}
	if t.Failed() {
		t.Logf("the town:\n%s", townManifest)
	}
	t.Logf("asked %v, not compared %v; the compared answers contain %v", w.asked, w.skipped, w.met)
	if *rounds >= 4 && !slices.ContainsFunc(landmarks, func(landmark string) bool { return w.met[landmark] > 0 }) {
		t.Errorf("no answer contains one of %q, so their texts have changed", landmarks)
	}
	for _, verdict := range []explain.Verdict{explain.Allowed, explain.Denied} {
		if w.asked[verdict] == 0 {
			t.Errorf("no answer is %s, so the questions are too few", verdict)
		}
	}
}

// patience is how long proxies may take to apply new policies.
const patience = 15 * time.Second

// compare asks both until they agree, or patience is exhausted.
func (w *town) compare(ctx context.Context, q generated.Question) error {
	answer, text, err := w.explain(ctx, q)
	if err != nil {
		return err
	}
	if answer.Verdict == explain.Mixed || needsNode(answer) {
		w.skipped[answer.Verdict]++
		return nil
	}
	w.asked[answer.Verdict]++
	if q.TLS {
		w.met["in TLS, "+string(answer.Verdict)]++
	}
	for _, landmark := range landmarks {
		if strings.Contains(text, landmark) {
			w.met[landmark]++
		}
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(300 * time.Millisecond) {
		err := w.asExplained(ctx, q, answer)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w\n%s", err, text)
		}
	}
}

// needsNode reports whether the call needs a node's kube-proxy, which a lab does not have.
func needsNode(answer *explain.Explanation) bool {
	return slices.ContainsFunc(answer.Steps, func(s explain.Step) bool {
		return strings.Contains(s.Text, explain.WithoutSidecar) || strings.Contains(s.Text, explain.ByKubernetes)
	})
}

func (w *town) explain(ctx context.Context, q generated.Question) (answer *explain.Explanation, text string, err error) {
	args := []string{"explain", "-f", w.ManifestDir(), "-o", "json", q.From, q.To}
	if q.Method != "" {
		args = append(args, q.Method, q.Path)
	}
	for _, header := range q.Headers {
		args = append(args, "--header", header)
	}
	var out, warnings bytes.Buffer
	cmd := cli.NewRootCommand()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&warnings)
	err = cmd.ExecuteContext(ctx)
	answer = new(explain.Explanation)
	if decoding := json.Unmarshal(out.Bytes(), answer); decoding != nil {
		return nil, "", fmt.Errorf("outrigger %s: %v, %w\n%s", strings.Join(args, " "), err, decoding, warnings.String())
	}
	var words strings.Builder
	if err := answer.WriteText(&words); err != nil {
		return nil, "", err
	}
	return answer, words.String(), nil
}

// tries is how often to send a request that several endpoints may answer.
const tries = 4

// asExplained asks the proxies, and returns an error if they contradict the explanation.
func (w *town) asExplained(ctx context.Context, q generated.Question, answer *explain.Explanation) error {
	host, port, err := net.SplitHostPort(q.To)
	if err != nil {
		return err
	}
	dials := []string{q.To}
	if len(q.Pods) > 0 {
		dials = nil
		for _, pod := range q.Pods {
			dials = append(dials, net.JoinHostPort(w.Pod(pod).Addresses()[0].String(), port))
		}
	} else if len(answer.Steps) > 0 && q.Method != "" {
		dials = slices.Repeat(dials, tries)
	}
	for _, dial := range dials {
		by, err := w.ask(ctx, q, net.JoinHostPort(host, port), dial)
		if allowed := answer.Verdict == explain.Allowed; allowed != (err == nil) {
			return fmt.Errorf("explained as %s, and the proxies give %q, %v", answer.Verdict, by, err)
		}
	}
	return nil
}

// ask sends the question's request from the pod, and returns the pod that answers.
func (w *town) ask(ctx context.Context, q generated.Question, authority, dial string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	connect := func(ctx context.Context, _, _ string) (net.Conn, error) { return w.Pod(q.From).Dial(ctx, "tcp", dial) }
	if q.Method == "" {
		conn, err := connect(ctx, "", "")
		if err != nil {
			return "", err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return "", err
		}
		if q.TLS {
			host, _, err := net.SplitHostPort(authority)
			if err != nil {
				return "", err
			}
			// The identity of the server does not matter.
			conn = tls.Client(conn, &tls.Config{ServerName: host, InsecureSkipVerify: true})
		}
		if _, err := io.WriteString(conn, "hello\n"); err != nil {
			return "", err
		}
		answer := make([]byte, 6)
		if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "hello\n" {
			return "", fmt.Errorf("it echoes %q: %w", answer, err)
		}
		return "", nil
	}
	request, err := http.NewRequestWithContext(ctx, q.Method, "http://"+authority+q.Path, http.NoBody)
	if err != nil {
		return "", err
	}
	for _, header := range q.Headers {
		name, value, _ := strings.Cut(header, "=")
		request.Header.Add(name, value)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: connect, DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && (response.StatusCode != http.StatusOK || response.Header.Get("X-App") == "") {
		err = fmt.Errorf("the status is %d: %.200s", response.StatusCode, body)
	}
	return string(body), err
}

// listener is a pod or the node.
type listener interface {
	Listen(ctx context.Context, network, address string) (net.Listener, error)
}

// serve starts the pod's application.
func serve(t *testing.T, pod *lab.Pod, name string) {
	t.Helper()
	for _, port := range generated.HTTPPorts {
		serveHTTP(t, pod, net.JoinHostPort("::", strconv.Itoa(port)), name)
	}
	for _, port := range generated.TCPPorts {
		l, err := pod.Listen(t.Context(), "tcp", net.JoinHostPort("::", strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		serveEcho(t, l)
	}
}

func serveEcho(t *testing.T, l net.Listener) {
	t.Helper()
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
}

// serveTLS echoes within TLS.
func serveTLS(t *testing.T, at listener, address string) {
	t.Helper()
	l, err := at.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	known := httptest.NewTLSServer(nil)
	known.Close()
	serveEcho(t, tls.NewListener(l, &tls.Config{Certificates: known.TLS.Certificates}))
}

func serveHTTP(t *testing.T, at listener, address, name string) {
	t.Helper()
	l, err := at.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-App", name)
		fmt.Fprint(w, name)
	})}
	t.Cleanup(func() { server.Close() })
	go server.Serve(l)
}

// TestGeneratorMakesEverything checks that twenty meshes contain every kind of object, and
// policies for them.
func TestGeneratorMakesEverything(t *testing.T) {
	var all strings.Builder
	for seed := range uint64(20) {
		g := generated.NewGenerator(seed, []string{"envoy"})
		all.WriteString(g.Policies() + g.Town())
		for _, q := range g.Questions(40, func(pod string) string { return pod }) {
			fmt.Fprintln(&all, q)
		}
	}
	for _, what := range []string{
		"kind: TrafficTarget", "kind: TrafficSplit", "kind: Retry", "kind: UpstreamTrafficSetting", "rateLimit:", "kind: IPRange",
		"kind: AuthenticatedPrincipal", "name: '*'", "skipClientCertValidation: true", "protocol: tcp", "protocol: http}", "number: 8443, protocol: https",
		generated.OutsideHost + ":8443 in TLS", generated.OutsideAddress + ":8443 in TLS",
	} {
		if !strings.Contains(all.String(), what) {
			t.Errorf("no mesh has %q", what)
		}
	}
}

// TestGeneratorIsDeterministic checks that a seed reproduces a mesh.
func TestGeneratorIsDeterministic(t *testing.T) {
	address := func(pod string) string { return pod }
	made := func() string {
		g := generated.NewGenerator(7, []string{"envoy", "pipy"})
		text := g.Policies() + g.Town()
		for _, q := range g.Questions(20, address) {
			text += q.String()
		}
		return text
	}
	texts := map[string]bool{}
	for range 5 {
		texts[made()] = true
	}
	if len(texts) != 1 {
		t.Errorf("one seed generates %d different meshes", len(slices.Collect(maps.Keys(texts))))
	}
}
