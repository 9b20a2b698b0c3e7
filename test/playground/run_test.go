package playground

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/test/lab"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// The test's own program is the application in the pods.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "serve":
		fmt.Println(http.ListenAndServe(":8080", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Println("got", r.URL.Path)
			_, _ = io.WriteString(w, "hello")
		})))
		os.Exit(1)
	case len(os.Args) == 3 && os.Args[1] == "get":
		client := http.Client{Timeout: 5 * time.Second}
		response, err := client.Get(os.Args[2])
		if err != nil {
			fmt.Println(err)
			os.Exit(4)
		}
		text, _ := io.ReadAll(response.Body)
		fmt.Printf("%d %s", response.StatusCode, text)
		os.Exit(0)
	}
	lab.Enter()
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// built is the folder of the programs.
var built string

// programs compiles the programs once for all tests.
var programs = sync.OnceValues(func() (localmesh.Programs, error) {
	var err error
	if built, err = os.MkdirTemp("", "outrigger-programs-"); err != nil {
		return localmesh.Programs{}, err
	}
	return localmesh.BuildPrograms(context.Background(), built, "")
})

const shop = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      serviceAccountName: web
      containers: [{name: web, image: shop/web:1, ports: [{containerPort: 8080}]}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: client, namespace: shop}
spec:
  selector: {matchLabels: {app: client}}
  template:
    metadata: {labels: {app: client}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: client, image: shop/client:1, command: [sleep, infinity]}]
`

const strict = `
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec: {traffic: {enablePermissiveTrafficPolicyMode: false}}
`

const allowed = `
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: web, namespace: shop}
spec:
  destination: {kind: ServiceAccount, name: web, namespace: shop}
  sources: [{kind: ServiceAccount, name: default, namespace: shop}]
  rules: [{kind: HTTPRouteGroup, name: web}]
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: web, namespace: shop}
spec: {matches: [{name: all, pathRegex: ".*", methods: ["*"]}]}
`

// text is a buffer for several goroutines.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (t *text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.Write(p)
}

func (t *text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}

// until waits until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(30 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 30 seconds", what)
		}
	}
}

// execute runs a command in a pod of the lab shop, with an input.
func execute(t *testing.T, pod, input string, args ...string) (string, int, error) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"in", "out"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(input), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in, err := os.Open(filepath.Join(dir, "in"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	code, err := Execute("shop", Command{Pod: pod, Args: args, Env: []string{"TERM=lab"}, Files: [3]*os.File{in, out, out}})
	written, failed := os.ReadFile(filepath.Join(dir, "out"))
	if failed != nil {
		t.Fatal(failed)
	}
	return string(written), code, err
}

// start runs the folder as the lab shop, and returns what it writes and a function that ends
// it. It skips the test if this machine cannot have pods.
func start(t *testing.T, dir string, commands *Commands, pods int) (out, problems *text, end func()) {
	t.Helper()
	if err := lab.Available(); errors.Is(err, lab.ErrUnavailable) {
		t.Skip("SKIPPED: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	compiled, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	if err := compiled.Missing["envoy"]; err != nil {
		t.Skip("SKIPPED: ", err)
	}
	t.Setenv(SessionsVariable, filepath.Join(t.TempDir(), "labs"))
	out, problems = new(text), new(text)
	options := Options{
		Paths: []string{dir}, Class: "envoy", Commands: commands, Programs: compiled, Dir: t.TempDir(),
		Dashboard: "127.0.0.1:0", DebugListen: "127.0.0.1:0", Name: "shop", Out: out, Err: problems,
		Log: slog.New(slog.NewTextHandler(problems, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, options) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		end()
		if t.Failed() {
			t.Logf("the lab says:\n%s\n%s", out, problems)
		}
	})
	until(t, "a running lab", func() bool {
		select {
		case err := <-ended:
			ended <- nil
			t.Fatalf("it has ended: %v", err)
		default:
		}
		all, err := Sessions()
		return err == nil && len(all) == 1 && len(all[0].Pods) == pods
	})
	return out, problems, end
}

// application puts the program of the pods into the folder of the manifests, since nothing else
// below /tmp is visible in a pod, and returns its path.
func application(t *testing.T, dir string) string {
	t.Helper()
	app := filepath.Join(dir, "app")
	if err := os.Link(os.Args[0], app); err != nil {
		program, err := os.ReadFile(os.Args[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(app, program, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return app
}

// TestRun runs two programs of this machine, changes their policy, and breaks the manifests.
func TestRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "shop")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	app := application(t, dir)
	write("shop.yaml", shop)
	write("mesh.yaml", strict)
	write("allowed.yaml", allowed)

	commands := new(Commands)
	if err := commands.AddCommand("shop/web='" + app + "' serve"); err != nil {
		t.Fatal(err)
	}
	out, problems, end := start(t, dir, commands, 2)

	answers := func(want string) func() bool {
		return func() bool {
			got, _, err := execute(t, "client", "", app, "get", "http://web/")
			return err == nil && got == want
		}
	}
	until(t, "an allowed request", answers("200 hello"))
	until(t, "the server's output", func() bool { return strings.Contains(out.String(), "shop/web-0 web | got /") })
	if got, code, err := execute(t, "shop/client-0", "input", "sh", "-c", "cat; echo -n $TERM; ls -d /var/lib/dpkg/info; touch /usr/x; exit 7"); err != nil || code != 7 || !strings.HasPrefix(got, "inputlab") || strings.Count(got, "\n") != 2 {
		t.Errorf("a command ends with %d, %v, and writes %q", code, err, got)
	}
	if _, _, err := execute(t, "shop/none", "", "true"); err == nil || !strings.Contains(err.Error(), `no pod "shop/none"; pods are shop/client-0, shop/web-0`) {
		t.Errorf("a command in a pod that does not exist: %v", err)
	}
	if _, _, err := execute(t, "client", "", "no-such-program"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a program that does not exist: %v", err)
	}

	// A program that does not read /etc/hosts asks the DNS server.
	if got, code, err := execute(t, "client", "", "sh", "-c", "cat /etc/hosts >/tmp/hosts; : >/etc/hosts; '"+app+"' get http://web/; '"+app+"' get http://web.shop.svc/; '"+app+"' get http://elsewhere.example/; code=$?; cat /tmp/hosts >/etc/hosts; exit $code"); err != nil || code != 4 || !strings.HasPrefix(got, "200 hello200 hello") || !strings.Contains(got, "no such host") {
		t.Errorf("with DNS the requests end with %d, %v, and get %q", code, err, got)
	}

	// Without the policy the request is denied, although the manifests are broken meanwhile.
	if err := os.Remove(filepath.Join(dir, "allowed.yaml")); err != nil {
		t.Fatal(err)
	}
	until(t, "a denied request", func() bool {
		got, code, err := execute(t, "client", "", app, "get", "http://web/")
		return err == nil && (code == 4 || strings.HasPrefix(got, "403") || strings.HasPrefix(got, "404"))
	})
	write("broken.yaml", "kind: [\n")
	until(t, "a complaint", func() bool { return strings.Contains(problems.String(), "keeps the former ones") })
	if !strings.Contains(problems.String(), "broken.yaml: in the document that begins on line 1") {
		t.Errorf("the complaint does not name the file: %s", problems)
	}
	write("broken.yaml", strings.ReplaceAll(allowed, "name: web, namespace: shop}\nspec:\n  dest", "name: other, namespace: shop}\nspec:\n  dest")+`
---
apiVersion: v1
kind: Pod
metadata: {name: ends, namespace: shop}
spec:
  containers:
  - name: app
    image: x
    command: [sh, -c, "echo bye $WORD $(cat /secret/word); exit 3"]
    env: [{name: WORD, valueFrom: {secretKeyRef: {name: words, key: word}}}]
    volumeMounts: [{name: words, mountPath: /secret}]
  volumes: [{name: words, secret: {secretName: words}}]
---
apiVersion: v1
kind: Secret
metadata: {name: words, namespace: shop}
stringData: {word: hush}
`)
	until(t, "an allowed request again", answers("200 hello"))
	until(t, "a container that ends", func() bool {
		return strings.Contains(out.String(), "shop/ends app | bye hush hush\n") && strings.Contains(problems.String(), "restarting a container that has ended") && strings.Contains(problems.String(), "code=3")
	})

	// A pod that never starts does not delay the manifest that mends it.
	late := "apiVersion: v1\nkind: Pod\nmetadata: {name: late, namespace: shop}\nspec:\n" +
		"  initContainers: [{name: first, image: x, command: [sh, -c, 'echo tried; exit 1']}]\n" +
		"  containers: [{name: app, image: x, command: [sh, -c, 'echo here; sleep 100']}]\n"
	write("late.yaml", late)
	until(t, "an init container that fails", func() bool { return strings.Contains(out.String(), "shop/late first | tried") })
	write("late.yaml", strings.ReplaceAll(late, "exit 1", "exit 0"))
	until(t, "a pod that starts", func() bool { return strings.Contains(out.String(), "shop/late app | here") })

	end()
	if all, err := Sessions(); len(all) != 0 || err != nil {
		t.Errorf("after its end, %v runs, %v", all, err)
	}
}
