package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/explain"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// serveController serves the pages of a controller that knows the proxies, and returns its
// address and the last question that it was asked.
func serveController(t *testing.T, proxies ...registry.Proxy) (address string, asked *string) {
	t.Helper()
	asked = new(string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case debug.ProxyPath:
			_ = json.NewEncoder(w).Encode(proxies)
		case debug.ExplainPath:
			q := r.URL.Query()
			*asked = strings.Join([]string{q.Get("from"), q.Get("to"), q.Get("method"), q.Get("path")}, " ")
			_ = json.NewEncoder(w).Encode(explain.Explanation{Verdict: explain.Denied, Steps: []explain.Step{
				{Topic: "caller", Text: "the caller is users/thief"},
				{Topic: "access", Text: "no rule lets users/thief in", Details: []string{"TrafficTarget shop/cart is for other sources"}, Verdict: explain.Denied},
			}})
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), asked
}

func currentProxy(name string) registry.Proxy {
	return registry.Proxy{UID: name, Name: mesh.Name{Namespace: "shop", Name: name}, State: registry.Current, Connected: time.Now()}
}

// runWhy returns the output of 'outrigger why' without the times.
func runWhy(t *testing.T, kubeconfig, controller, args string) (out, warnings string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := newWhyCommand()
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append(strings.Fields(args), "--kubeconfig", kubeconfig, "--debug-address", controller))
	err = cmd.ExecuteContext(t.Context())
	for line := range strings.Lines(stdout.String()) {
		if time, text, ok := strings.Cut(line, " "); ok && strings.Contains(time, ":") {
			line = text
		}
		out += line
	}
	return out, stderr.String(), err
}

func TestWhy(t *testing.T) {
	logs := maps.Clone(tapped)
	t.Cleanup(func() { tapped = logs })
	tapped = maps.Clone(tapped)
	// The application fails, and the server's sidecar refuses what web has sent.
	const failing = `"downstream_remote":"10.0.0.2:41000","duration":3,"method":"GET","authority":"cart","request_id":"r5","response_code":500,"response_flags":"-","start_time":"2026-11-25T14:00:04Z"`
	tapped["cart-0"] += `{"path":"/fails?a=1","upstream_host":"127.0.0.1:8080","downstream_peer":"spiffe://cluster.local/ns/shop/sa/web",` + failing + "}\n" +
		`{"downstream_peer":"spiffe://cluster.local/ns/shop/sa/web","downstream_remote":"10.0.0.2:42000","duration":0,"method":"PUT","authority":"cart","path":"/slow","reason":"rate_limit","request_id":"r6","response_code":503,"start_time":"2026-11-25T14:00:05Z"}` + "\n"
	tapped["web-0"] += `{"path":"/fails?a=1","upstream_host":"10.0.0.1:8080","upstream_peer":"spiffe://cluster.local/ns/shop/sa/cart",` + strings.Replace(failing, "41000", "40900", 1) + "}\n" +
		`{"path":"/fails?a=2","upstream_host":"10.0.0.1:8080","upstream_peer":"spiffe://cluster.local/ns/shop/sa/cart",` + strings.Replace(failing, "r5", "r7", 1) + "}\n" +
		`{"upstream_host":"10.0.0.1:8080","upstream_peer":"spiffe://cluster.local/ns/shop/sa/cart","downstream_remote":"10.0.0.2:42000","duration":1,"method":"PUT","authority":"cart","path":"/slow","reason":"","request_id":"r6","response_code":503,"start_time":"2026-11-25T14:00:05Z"}` + "\n" +
		`{"upstream_host":"10.0.0.77:8080","downstream_remote":"10.0.0.2:42000","duration":1,"method":"GET","authority":"old","path":"/","reason":"","request_id":"r8","response_code":502,"start_time":"2026-11-25T13:00:05Z"}` + "\n"
	kubeconfig := serveTapped(t, changes{})
	rejected := currentProxy("web-0")
	rejected.State = registry.Rejected
	rejected.Rejections = []registry.Rejection{{Resources: []string{"Cluster shop/cart:80"}, Message: "no such field"}}
	controller, asked := serveController(t, currentProxy("cart-0"), rejected)

	out, warnings, err := runWhy(t, kubeconfig, controller, "-n shop")
	if !errors.Is(err, errRefused) {
		t.Errorf("the error is %v\n%s", err, warnings)
	}
	want := `shop/cart-0 <- shop/web PUT cart/slow 503 0s refused: rate_limit
    The sidecar of shop/cart-0 has refused it: a rate limit of the server is exceeded.
shop/web-0 -> shop/cart PUT cart/slow 503 1ms
    It was sent to pod shop/cart-0.
    Its sidecar has refused it: a rate limit of the server is exceeded.
shop/cart-0 <- shop/web GET cart/fails?a=1 500 3ms
    The sidecar has let it through, and the application of shop/cart-0 has answered 500, or could not be reached (no flags).
shop/web-0 -> shop/cart GET cart/fails?a=2 500 3ms (2 times, the last one is shown)
    It was sent to pod shop/cart-0.
    Its sidecar has no line about it: it did not arrive, or the access log there is off.
shop/web-0 -> nobody GET gone/ 503 0s refused: no_endpoint
    The sidecar of shop/web-0 has refused it: no endpoint of the service can be called.
shop/cart-0 <- 10.0.0.9:40001 TCP 0s refused: plaintext
    The sidecar of shop/cart-0 has refused it: the caller used no TLS of the mesh at a port that requires it.
shop/cart-0 <- users/thief GET cart/stolen 403 0s refused: access
    The sidecar of shop/cart-0 has refused it: no policy lets the caller send this request or connection.
    no rule lets users/thief in
      TrafficTarget shop/cart is for other sources
shop/web-0 -> 10.0.0.77:8080 GET old/ 502 1ms
    It was sent to 10.0.0.77:8080, where no pod with a sidecar is any more, so that end is not known.
The proxy of shop/web-0 runs an old configuration, because it has rejected Cluster shop/cart:80: no such field
`
	if diff := cmp.Diff(want, out); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if *asked != "users/thief shop/cart-0 GET /stolen" {
		t.Errorf("the controller is asked about %q", *asked)
	}

	out, _, _ = runWhy(t, kubeconfig, controller, "-A --request-id r5")
	if lines := strings.Count(out, "GET cart/fails?a=1"); lines != 2 || strings.Contains(out, "slow") || !strings.Contains(out, "and the application has answered 500") {
		t.Errorf("one request: %s", out)
	}
	if out, _, _ := runWhy(t, kubeconfig, controller, "-n shop --max 1"); !strings.HasSuffix(strings.TrimSpace(strings.Split(out, "The proxy of")[0]), "and 7 other kinds of failures; see them with --max") {
		t.Errorf("the first one only: %s", out)
	}
}

// TestWhyNotHTTP: what is sent to an HTTP port and is not HTTP has failed, and the answer names the
// port and the setting.
func TestWhyNotHTTP(t *testing.T) {
	logs := maps.Clone(tapped)
	t.Cleanup(func() { tapped = logs })
	tapped = map[string]string{
		"web-0":  `{"downstream_remote":"10.0.0.2:50000","downstream_local":"10.96.0.9:5432","method":"-","path":"-","reason":"-","response_code":400,"response_flags":"PR--","upstream_host":"-:-","duration":1,"start_time":"2026-11-25T14:00:00Z"}` + "\n",
		"cart-0": `{"downstream_remote":"10.0.0.2:50000","method":null,"reason":"not_http","response_code":0,"duration":1,"start_time":"2026-11-25T13:00:00Z"}` + "\n",
	}
	kubeconfig := serveTapped(t, changes{})
	controller, _ := serveController(t, currentProxy("cart-0"), currentProxy("web-0"))
	out, warnings, err := runWhy(t, kubeconfig, controller, "-n shop")
	const setting = "    If it is another protocol, set appProtocol of the Service's port: for example tcp, or tcp-server-first if the server speaks first, as MySQL, SMTP and SSH do.\n"
	want := `shop/web-0 -> 10.96.0.9:5432 not HTTP 400 1ms refused: not_http
    The application has called port 5432 of Service shop/db.
    The sidecar of shop/web-0 takes the port for HTTP, and what was sent is not HTTP.
` + setting + `    kubectl patch service db -n shop --type=json -p '[{"op": "add", "path": "/spec/ports/1/appProtocol", "value": "tcp"}]'
shop/cart-0 <- 10.0.0.2:50000 not HTTP 1ms refused: not_http
    The sidecar of shop/cart-0 takes the port for HTTP, and what was sent is not HTTP.
` + setting
	if diff := cmp.Diff(want, out); !errors.Is(err, errRefused) || diff != "" {
		t.Errorf("%v, %s (-want +got):\n%s", err, warnings, diff)
	}
}

// TestWhySilent: a client that has waited silently may have failed, and the answer names the port and
// the setting.
func TestWhySilent(t *testing.T) {
	logs := maps.Clone(tapped)
	t.Cleanup(func() { tapped = logs })
	tapped = map[string]string{
		"web-0": strings.Repeat(`{"downstream_remote":"10.0.0.2:50000","downstream_local":"10.96.0.9:5432","method":"-","reason":"-","response_code":-1,"response_flags":"PR--","upstream_host":"-:-","duration":15020,"start_time":"2026-11-25T14:00:00Z","connection_close_details":"`+telemetry.Silent+`"}`+"\n", 2),
	}
	kubeconfig := serveTapped(t, changes{})
	controller, _ := serveController(t, currentProxy("cart-0"), currentProxy("web-0"))
	out, warnings, err := runWhy(t, kubeconfig, controller, "-n shop")
	want := `shop/web-0 -> 10.96.0.9:5432 silent 15.02s (2 times, the last one is shown)
    The application has called port 5432 of Service shop/db.
    The sidecar of shop/web-0 takes the port for HTTP, where the client speaks first. It has waited 15s, and the application has sent nothing.
    This is normal for a client of HTTP that opens connections in advance.
    If it is another protocol, set appProtocol of the Service's port: for example tcp, or tcp-server-first if the server speaks first, as MySQL, SMTP and SSH do.
    kubectl patch service db -n shop --type=json -p '[{"op": "add", "path": "/spec/ports/1/appProtocol", "value": "tcp-server-first"}]'
nothing else has failed in 10m0s (pods: 2, requests and connections: 2)
`
	if diff := cmp.Diff(want, out); err != nil || diff != "" {
		t.Errorf("%v, %s (-want +got):\n%s", err, warnings, diff)
	}
}

// TestWhyNothing: nothing has failed, and what cannot be read is not taken for that.
func TestWhyNothing(t *testing.T) {
	logs := maps.Clone(tapped)
	t.Cleanup(func() { tapped = logs })
	tapped = map[string]string{"cart-0": strings.SplitAfter(logs["cart-0"], "\n")[1], "web-0": ""}
	kubeconfig := serveTapped(t, changes{})
	controller, _ := serveController(t, currentProxy("cart-0"))

	out, warnings, err := runWhy(t, kubeconfig, controller, "-n shop")
	want := "The proxy of shop/web-0 is not connected to a controller, so it has an old configuration or none.\n" +
		"nothing has failed in 10m0s (pods: 2, requests and connections: 1)\n"
	if err != nil || out != want {
		t.Errorf("%v, %q, %s", err, out, warnings)
	}
	tapped["web-0"] = strings.Repeat("x", maxLine+1)
	for name, address := range map[string]string{"a log": controller, "the controller": "127.0.0.1:1"} {
		_, warnings, err := runWhy(t, kubeconfig, address, "-n shop")
		if err == nil || errors.Is(err, errRefused) || !strings.Contains(warnings, "warning: ") {
			t.Errorf("without %s: %v, %s", name, err, warnings)
		}
	}
	for args, want := range map[string]string{"shop/bare-0": "no running pods", "--since 0s": "must be positive", "-A -n shop": "-A can't", "shop/cart-0 -l app=cart": "-l can't"} {
		if _, _, err := runWhy(t, kubeconfig, controller, args); err == nil || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}
