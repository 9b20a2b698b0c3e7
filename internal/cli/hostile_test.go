package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/explain"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// hostile is what a name or a value may contain: it clears the screen, sets the window's title,
// writes a line of its own, turns the direction of text, and ends a cell of a table.
const hostile = "evil\x1b[2J\x1b]0;title\a\r\nforged: all is well\u202e\u009b31m\x7f\tend"

// hostileCommands are the command lines of all commands that print something of an object, a
// client or a proxy. FILES are manifests, and the cluster and its controller are those of
// hostileCluster. In output for programs the values must be the same as in the object.
var hostileCommands = map[string][]string{
	"inject":           {"-f FILES --dry-run", "-f FILES --dry-run --report-format json", "-f FILES"},
	"uninject":         {"-f FILES --dry-run", "-f FILES --dry-run --report-format json", "-f FILES"},
	"check-inject":     {"-f FILES", "-f FILES -o json", "-f FILES -o yaml"},
	"validate":         {"-f FILES", "-f FILES -o json", "-f FILES -o yaml"},
	"convert":          {"-f FILES -o json", "-f FILES -o yaml"},
	"explain":          {"-f FILES shop/web shop/cart GET /", "-f FILES shop/web shop/cart GET / -o json"},
	"translate":        {"-f FILES --proxy shop/cart-0", "-f FILES --proxy shop/cart-0 -o json"},
	"tap":              {"-A --follow=false", "-A --follow=false -o wide", "-A --follow=false -o json"},
	"why":              {"-A CONTROLLER --kubeconfig CLUSTER"},
	"proxy list":       {"CONTROLLER", "CONTROLLER -o wide", "CONTROLLER -o name", "CONTROLLER -o json", "CONTROLLER -o yaml"},
	"proxy get":        {"CONTROLLER shop/cart", "CONTROLLER shop/cart -o json", "CONTROLLER shop/cart -o yaml"},
	"proxy logs":       {"shop/cart"},
	"stat":             {"CONTROLLER all", "CONTROLLER pod -o wide", "CONTROLLER pod -o json"},
	"top":              {"CONTROLLER --interval 1s"},
	"edges":            {"CONTROLLER", "CONTROLLER -o wide", "CONTROLLER -o json"},
	"audit":            {"CONTROLLER -A", "CONTROLLER -A -o wide", "CONTROLLER -A -o json"},
	"check":            {"", "-o json", "-o yaml"},
	"namespace list":   {"", "-o wide", "-o name", "-o json", "-o yaml"},
	"namespace add":    {"evil"},
	"namespace remove": {"evil"},
	"namespace ignore": {"evil"},
	"version":          {"", "-o json"},
	"bug-report":       {"--dry-run --timeout 5s"},
}

// silentCommands print no text of an object here, with the reason.
var silentCommands = map[string]string{
	"controller": "its log is JSON",
	"injector":   "its log is JSON",
	"dashboard":  "it prints its own address",
	"demo":       "it prints the names of its own sample",
	"class move": "it prints by package terminal, and reads kinds that this API server does not list",
	"lab":        "it starts the program outrigger-lab, which prints by package terminal",
}

// TestHostileText runs every command with objects, clients and proxies whose texts try to control
// the terminal.
func TestHostileText(t *testing.T) {
	kubeconfig, controller := hostileCluster(t)
	files := hostileFiles(t)
	t.Setenv("KUBECONFIG", kubeconfig)
	found := make(map[string]bool)
	eachCommand(NewRootCommand(), func(cmd *cobra.Command) {
		name := strings.TrimPrefix(cmd.CommandPath(), "outrigger ")
		found[name] = true
		if silentCommands[name] == "" && hostileCommands[name] == nil {
			t.Errorf("%s has no row in this test", name)
		}
	})
	for name, rows := range hostileCommands {
		if !found[name] {
			t.Errorf("there is no command %s", name)
		}
		for _, row := range rows {
			t.Run(name+" "+row, func(t *testing.T) {
				line := strings.NewReplacer("FILES", files, "CLUSTER", kubeconfig, "CONTROLLER", "--debug-address "+controller).Replace(row)
				// The command top never ends.
				ctx, cancel := context.WithTimeout(t.Context(), map[bool]time.Duration{true: 2 * time.Second, false: time.Minute}[name == "top"])
				defer cancel()
				var stdout, stderr bytes.Buffer
				root := NewRootCommand()
				root.SetArgs(append(strings.Fields(name), strings.Fields(line)...))
				root.SetOut(&stdout)
				root.SetErr(&stderr)
				if code := execute(ctx, root); code == exitMisused {
					t.Fatalf("wrong usage: %s", stderr.String())
				}
				text := stderr.String()
				format, isData := dataFormat(name, row)
				if !isData {
					text += stdout.String()
				} else if err := holdsExactly(stdout.Bytes(), format); err != nil {
					t.Errorf("%v:\n%q", err, stdout.String())
				}
				expectHarmless(t, text)
				if !isData && !strings.Contains(text, `evil\x1b[2J`) {
					t.Errorf("no value is shown, so the test shows nothing:\n%s", text)
				}
			})
		}
	}
}

func eachCommand(cmd *cobra.Command, do func(*cobra.Command)) {
	if !cmd.HasSubCommands() && cmd.Name() != "help" {
		do(cmd)
	}
	for _, sub := range cmd.Commands() {
		if sub.Name() != "completion" {
			eachCommand(sub, do)
		}
	}
}

// dataFormat returns the format of a command's standard output, if that is for programs.
func dataFormat(name, line string) (format string, isData bool) {
	switch {
	case strings.HasSuffix(line, "json"):
		return "json", true
	case name == "translate":
		return "files", true
	case strings.HasSuffix(line, "yaml"), strings.HasSuffix(name, "inject") && !strings.Contains(line, "--dry-run") && name != "check-inject":
		return "yaml", true
	}
	return "", false
}

// holdsExactly returns an error unless data can be parsed and one of its strings is hostile as it
// was given. What a driver made of the values is not compared, and the objects of manifests that
// are not read stay as they are.
func holdsExactly(data []byte, format string) error {
	var values []any
	switch format {
	case "files":
		// The files of a proxy are for the proxy.
		return nil
	case "json":
		decoder := json.NewDecoder(bytes.NewReader(data))
		for decoder.More() {
			var value any
			if err := decoder.Decode(&value); err != nil {
				return err
			}
			values = append(values, value)
		}
	case "yaml":
		for part := range bytes.SplitSeq(bytes.TrimPrefix(data, []byte("---\n")), []byte("\n---\n")) {
			var value any
			if json.Unmarshal(part, &value) == nil {
				// It may contain characters that YAML allows in JSON only.
			} else if err := yaml.Unmarshal(part, &value); err != nil {
				return err
			}
			values = append(values, value)
		}
	}
	text := fmt.Sprint(values...)
	if strings.Contains(text, "evil") && !strings.Contains(text, hostile) {
		return fmt.Errorf("the values are not those of the objects")
	}
	return nil
}

// expectHarmless fails the test if a text could control a terminal, or has a line that a value
// has made.
func expectHarmless(t *testing.T, text string) {
	t.Helper()
	if !utf8.ValidString(text) {
		t.Errorf("it is not UTF-8: %q", text)
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if i := strings.IndexFunc(line, func(r rune) bool { return r != '\t' && !strconv.IsPrint(r) }); i >= 0 {
			t.Errorf("the line has the character %q: %q", line[i:min(i+4, len(line))], line)
		}
		if strings.HasPrefix(line, "forged") {
			t.Errorf("a value has made the line %q", line)
		}
	}
}

// TestOnePrinter: text for people is written by package terminal only.
func TestOnePrinter(t *testing.T) {
	var files []string
	for _, pattern := range []string{"*.go", "install/*.go", "usage/*.go", "../../test/command/*.go", "../../test/playground/*.go", "../explain/text.go", "../inject/offline/report.go"} {
		some, err := filepath.Glob(pattern)
		if err != nil || len(some) == 0 {
			t.Fatal(pattern, err)
		}
		files = append(files, some...)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, _ := call.X.(*ast.Ident)
			if pkg != nil && (pkg.Name == "fmt" && (strings.HasPrefix(call.Sel.Name, "Fprint") || strings.HasPrefix(call.Sel.Name, "Print")) || pkg.Name == "tabwriter") {
				t.Errorf("%s: %s.%s writes text; use package terminal", set.Position(n.Pos()), pkg.Name, call.Sel.Name)
			}
			return true
		})
	}
}

// fill sets every string of a value to hostile, and everything else to something.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(hostile)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Float64:
		v.SetFloat(2)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Now()))
			return
		}
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
	}
}

func filled[T any](change func(*T)) T {
	var value T
	fill(reflect.ValueOf(&value).Elem())
	if change != nil {
		change(&value)
	}
	return value
}

// hostileCluster serves an API server and a controller, and returns the kubeconfig of the one and
// the address of the other. Whatever they do not know is refused with a hostile message.
func hostileCluster(t *testing.T) (kubeconfig, controller string) {
	t.Helper()
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: hostile, Name: hostile, UID: "1", Annotations: map[string]string{"openservicemesh.io/sidecar-status": "{}"}},
		Spec: corev1.PodSpec{InitContainers: []corev1.Container{
			{Name: driver.InitContainer, Image: "example.com/" + hostile}, {Name: driver.ProxyContainer, Image: hostile},
		}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", InitContainerStatuses: []corev1.ContainerStatus{{Name: driver.ProxyContainer, ContainerID: "a"}}},
	}
	namespace := corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: hostile, Labels: map[string]string{"openservicemesh.io/monitored-by": "osm"}, Annotations: map[string]string{"openservicemesh.io/sidecar-class": hostile},
	}}
	quoted, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	log := fmt.Sprintf(`%[2]s %[3]s
{"downstream_peer":%[1]s,"downstream_remote":%[1]s,"upstream_host":%[1]s,"duration":3,"method":%[1]s,"authority":%[1]s,"path":%[1]s,"reason":%[1]s,"request_id":%[1]s,"response_code":503,"response_flags":%[1]s,"start_time":"2026-11-25T14:00:00.5Z"}
`, quoted, strings.ReplaceAll(hostile, "\nforged", "\n forged"), "bad\xff")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		path := strings.TrimSuffix(r.URL.Path, "/")
		var answer any
		switch {
		case strings.HasSuffix(path, "/log"):
			w.Header().Set("Content-Type", "text/plain")
			_, _ = w.Write([]byte(log))
			return
		case strings.HasSuffix(path, "/pods"):
			answer = corev1.PodList{Items: []corev1.Pod{pod}}
		case strings.Contains(path, "/pods/") && r.Method == http.MethodGet:
			answer = pod
		case path == "/version":
			answer = map[string]string{"major": "1", "minor": "33", "gitVersion": "v1.33.0-" + hostile}
		case path == "/api/v1/namespaces":
			answer = corev1.NamespaceList{Items: []corev1.Namespace{namespace}}
		case path == "/api/v1/namespaces/evil":
			answer = namespace
		default:
			w.WriteHeader(http.StatusForbidden)
			answer = metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: hostile}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	pages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxy := filled[registry.Proxy](nil)
		switch {
		case r.URL.Path == debug.ProxyPath && r.URL.Query().Has("pod"):
			_ = json.NewEncoder(w).Encode(map[string]any{"proxy": proxy, "view": map[string]string{"name": hostile}, "configuration": map[string]string{hostile: hostile}, "note": hostile})
		case r.URL.Path == debug.ProxyPath:
			_ = json.NewEncoder(w).Encode([]registry.Proxy{proxy})
		case r.URL.Path == debug.ExplainPath:
			_ = json.NewEncoder(w).Encode(filled(func(e *explain.Explanation) { e.Verdict = explain.Denied }))
		case r.URL.Path == debug.TrafficPath:
			_ = json.NewEncoder(w).Encode(filled(func(r *traffic.Report) {
				r.Pods[0].Seconds, r.Pods[0].Problem = 1, ""
				r.Pods[0].Flows[0].Reporter = "destination"
				unread := r.Pods[0]
				unread.Name.Name, unread.Read, unread.Problem = hostile+"2", false, hostile
				r.Pods = append(r.Pods, unread)
			}))
		default:
			http.Error(w, hostile, http.StatusNotFound)
		}
	}))
	t.Cleanup(pages.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u, namespace: shop}}]\nclusters: [{name: c, cluster: {server: %q}}]\nusers: [{name: u}]\n", server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig, strings.TrimPrefix(pages.URL, "http://")
}

// hostileFiles writes manifests of a mesh, whose names and values are hostile where the command
// reads them at all.
func hostileFiles(t *testing.T) string {
	t.Helper()
	object := func(version, kind, namespace, name string, spec any) map[string]any {
		return map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{"name": name, "namespace": namespace}, "spec": spec}
	}
	deployment := func(name string) map[string]any {
		return object("apps/v1", "Deployment", "shop", name, map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{"app": "cart"}},
			"template": map[string]any{
				"metadata": map[string]any{"labels": map[string]any{"app": "cart"}},
				"spec":     map[string]any{"serviceAccountName": "cart", "containers": []any{map[string]any{"name": "app", "image": "i"}}},
			},
		})
	}
	web := deployment("web")
	web["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)["serviceAccountName"] = "web"
	account := func(name string) map[string]any {
		return map[string]any{"kind": "ServiceAccount", "name": name, "namespace": "shop"}
	}
	objects := []map[string]any{
		{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "shop", "labels": map[string]any{"openservicemesh.io/monitored-by": "osm"}, "annotations": map[string]any{"openservicemesh.io/sidecar-injection": "enabled"}}},
		object("config.openservicemesh.io/v1alpha2", "MeshConfig", "osm-system", "osm-mesh-config", map[string]any{"traffic": map[string]any{"enablePermissiveTrafficPolicyMode": false}}),
		object("v1", "Service", "shop", "cart", map[string]any{"selector": map[string]any{"app": "cart"}, "ports": []any{map[string]any{"name": "http", "port": 80}}}),
		deployment("cart"), web, deployment(hostile),
		object("specs.smi-spec.io/v1alpha4", "HTTPRouteGroup", "shop", hostile, map[string]any{"matches": []any{map[string]any{"name": hostile, "pathRegex": "/" + hostile}}}),
		object("access.smi-spec.io/v1alpha3", "TrafficTarget", "shop", hostile, map[string]any{
			"destination": account("cart"), "sources": []any{account("web"), account(hostile)}, "rules": []any{map[string]any{"kind": "HTTPRouteGroup", "name": hostile}},
		}),
		object("split.smi-spec.io/v1alpha4", "TrafficSplit", "shop", hostile, map[string]any{
			"service": "cart", "backends": []any{map[string]any{"service": hostile, "weight": 1}, map[string]any{"service": "cart", "weight": 1}},
		}),
		object("policy.openservicemesh.io/v1alpha1", "Egress", "shop", hostile, map[string]any{
			"sources": []any{account(hostile)}, "hosts": []any{hostile}, "ports": []any{map[string]any{"number": 80, "protocol": "http"}},
		}),
		object("gateway.networking.k8s.io/v1", "GatewayClass", "", "outrigger-envoy", map[string]any{"controllerName": "outrigger.openservicemesh.io/controller"}),
		object("gateway.networking.k8s.io/v1", "Gateway", "shop", "door", map[string]any{
			"gatewayClassName": "outrigger-envoy", "listeners": []any{
				map[string]any{"name": hostile, "port": 80, "protocol": "HTTP"},
				map[string]any{"name": "second", "port": 80, "protocol": "HTTP"},
				map[string]any{"name": "third", "port": 81, "protocol": hostile, "hostname": hostile, "allowedRoutes": map[string]any{
					"kinds": []any{map[string]any{"kind": hostile}}, "namespaces": map[string]any{"from": hostile},
				}},
			},
		}),
		object("gateway.networking.k8s.io/v1", "HTTPRoute", "shop", "door", map[string]any{
			"parentRefs": []any{map[string]any{"name": "door", "sectionName": hostile + "2"}, map[string]any{"name": hostile}}, "hostnames": []any{hostile}, "rules": []any{},
		}),
	}
	var text []byte
	for _, o := range objects {
		one, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		// YAML does not allow these characters as they are.
		one = bytes.ReplaceAll(bytes.ReplaceAll(one, []byte("\x7f"), []byte(`\u007f`)), []byte("\u009b"), []byte(`\u009b`))
		text = slices.Concat(text, []byte("---\n"), one, []byte("\n"))
	}
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
