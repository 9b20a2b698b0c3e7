package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// trafficReport is that of a mesh in which web calls cart through the service cart, and is
// denied by it at times. The pod cart-1 was not read.
func trafficReport(seconds float64) *traffic.Report {
	pod := func(name, owner string, flows ...traffic.Flow) traffic.Pod {
		return traffic.Pod{
			Name: mesh.Name{Namespace: "shop", Name: name}, Owner: fact.Owner{Kind: "deployment", Name: owner},
			ServiceAccount: owner, Class: "envoy", Seconds: seconds, Read: true, Flows: flows,
		}
	}
	web, cart := traffic.End{Namespace: "shop", Workload: "web", ServiceAccount: "web"}, traffic.End{Namespace: "shop", Workload: "cart", ServiceAccount: "cart"}
	counts := func(requests float64) traffic.Counts {
		return traffic.Counts{
			Requests: requests, Failed: requests / 100, Codes: map[string]float64{"200": requests * 0.89, "403": requests / 10, "503": requests / 100},
			TLS: map[string]float64{"mutual": requests}, Received: 1000 * requests, Sent: 1e6 * requests, Retries: 1,
			Denied:    map[string]float64{"access": requests / 10},
			Durations: traffic.Histogram{Buckets: []traffic.Bucket{{Bound: 0.005, Count: requests / 2}, {Bound: 0.01, Count: requests / 2}}, Over: 0},
		}
	}
	out := counts(200)
	out.Denied = nil
	unread := pod("cart-1", "cart")
	unread.Read, unread.Seconds, unread.Problem, unread.Class = false, 0, "connection refused", "pipy"
	return &traffic.Report{
		Services: []mesh.Name{{Namespace: "shop", Name: "cart"}},
		Pods: []traffic.Pod{
			pod("cart-0", "cart", traffic.Flow{Reporter: "destination", Source: traffic.End{Namespace: "shop", ServiceAccount: "web"}, Destination: cart, Counts: counts(200)}),
			unread,
			pod("web-0", "web", traffic.Flow{
				Reporter: "source", Source: web, Destination: traffic.End{Namespace: "shop", ServiceAccount: "cart"}, Service: "cart", Counts: out,
			}),
		},
	}
}

// trafficServer serves a report as a controller's debug page, and returns its address and the
// queries that it receives.
func trafficServer(t *testing.T) (address string, queries *[]string) {
	t.Helper()
	queries = new([]string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/debug/traffic" {
			http.NotFound(w, r)
			return
		}
		*queries = append(*queries, r.URL.RawQuery)
		period, err := time.ParseDuration(r.URL.Query().Get("period"))
		if err == nil {
			err = json.NewEncoder(w).Encode(trafficReport(period.Seconds()))
		}
		if err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), queries
}

// run returns the output of a command and its error.
func run(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	cmd := NewRootCommand()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err = cmd.ExecuteContext(ctx)
	return out.String(), errs.String(), err
}

const unreadCart = "warning: a pod is missing in the numbers: connection refused: shop/cart-1\n"

func TestStat(t *testing.T) {
	for args, tt := range map[string]struct{ stdout, stderr, query string }{
		"stat deploy": {`
NAMESPACE   NAME   PODS   RPS    SUCCESS   P50     P95     P99     CONN/S   RECEIVED/S   SENT/S    MTLS   DENIED/S
shop        cart   1/2    20.0   99.0%     5.0ms   9.5ms   9.9ms   0.0      19.5KiB      19.1MiB   100%   2.0
shop        web    1/1    0.0    -         -       -       -       0.0      0B           0B        -      0.0
`, unreadCart, "period=10s"},
		"stat deploy/web -n shop --to svc/cart --window 20s": {`
NAME   PODS   RPS    SUCCESS   P50     P95     P99     CONN/S   RECEIVED/S   SENT/S   MTLS   DENIED/S
web    1/1    10.0   99.0%     5.0ms   9.5ms   9.9ms   0.0      9.8KiB       9.5MiB   100%   0.0
`, "", "namespace=shop&period=20s"},
		"stat all cart -A -o wide": {`
NAMESPACE   NAME              PODS   RPS    SUCCESS   P50     P95     P99     CONN/S   RECEIVED/S   SENT/S    MTLS   DENIED/S   RETRIES/S   CLASS        CODES
shop        deployment/cart   1/2    20.0   99.0%     5.0ms   9.5ms   9.9ms   0.0      19.5KiB      19.1MiB   100%   2.0        0.1         envoy,pipy   200=17.8,403=2.0,503=0.2
`, unreadCart, "period=10s"},
		"stat svc -n shop": {`
NAME   PODS   RPS    SUCCESS   P50     P95     P99     CONN/S   RECEIVED/S   SENT/S    MTLS   DENIED/S
cart   -      20.0   99.0%     5.0ms   9.5ms   9.9ms   0.0      19.5KiB      19.1MiB   100%   0.0
`, unreadCart, "period=10s"},
		"stat ns": {`
NAME   PODS   RPS    SUCCESS   P50     P95     P99     CONN/S   RECEIVED/S   SENT/S    MTLS   DENIED/S
shop   2/3    20.0   99.0%     5.0ms   9.5ms   9.9ms   0.0      19.5KiB      19.1MiB   100%   2.0
`, unreadCart, "period=10s"},
		"stat job": {"", "nothing in the mesh has this type; see 'outrigger check-inject' for pods without a sidecar\n", "period=10s"},
	} {
		t.Run(args, func(t *testing.T) {
			address, queries := trafficServer(t)
			stdout, stderr, err := run(t.Context(), append(strings.Fields(args), "--debug-address", address)...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimPrefix(tt.stdout, "\n"), stdout); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.stderr, stderr); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			if got := strings.Join(*queries, " "); got != tt.query {
				t.Errorf("the controller is asked for %q, want %q", got, tt.query)
			}
		})
	}
}

func TestStatJSON(t *testing.T) {
	address, _ := trafficServer(t)
	stdout, _, err := run(t.Context(), "stat", "deploy/web", "-n", "shop", "-o", "json", "--debug-address", address)
	if err != nil {
		t.Fatal(err)
	}
	var rows []map[string]any
	if err := json.Unmarshal([]byte(stdout), &rows); err != nil || len(rows) != 1 || rows[0]["name"] != "web" || rows[0]["kind"] != "deployment" {
		t.Errorf("got %s and %v, want one row of web", stdout, err)
	}
	if stdout, _, _ = run(t.Context(), "stat", "job", "-o", "json", "--debug-address", address); stdout != "[]\n" {
		t.Errorf("without rows got %q, want an empty list", stdout)
	}
}

func TestStatUsage(t *testing.T) {
	t.Setenv("KUBECONFIG", "none")
	for args, want := range map[string]string{
		"stat":                                     "give the type of the objects",
		"stat deplyo":                              `"deplyo" is not a type of object that has traffic; types are deploy, sts, ds, rs, job, po, svc, ns and all; did you mean "deploy"?`,
		"stat deploy/":                             "give TYPE [NAME...] or TYPE/NAME",
		"stat deploy/a svc/b":                      "all objects must have the type of the first",
		"stat deploy/a/b":                          "give TYPE [NAME...] or TYPE/NAME",
		"stat deploy --window 6m":                  "at most 5m0s",
		"stat deploy --window -1s":                 "--window -1s",
		"stat deploy -A -n shop":                   "-A means all namespaces",
		"stat deploy -o text":                      "formats are wide, json, yaml",
		"stat deploy --to web -n shop":             "give TYPE/NAME, such as deploy/web",
		"stat deploy -A --to svc/web":              "name its namespace with -n, or with --to-namespace",
		"stat deploy -n a --to svc/b --from svc/c": "give either --to or --from",
		"stat svc -n a --to svc/b":                 "a Service sends no requests",
		"stat deploy --prometheus localhost:9090":  "give a URL such as http://127.0.0.1:9090",
		"stat deploy --prometheus http://a --debug-address b:1": "--prometheus asks no controller",
		"edges deploy -n shop":    "give TYPE/NAME",
		"edges all/web -n shop":   "name the type of the object",
		"edges deploy/a deploy/b": "at most one object",
		"top -A --interval 0s":    "give a time from 1s to 5m0s",
	} {
		_, _, err := run(t.Context(), strings.Fields(args)...)
		if err == nil || !errors.As(err, &usage.Error{}) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want a wrong usage with %q", args, err, want)
		}
	}
}

// TestStatFailures checks the advice for controllers that do not answer with traffic.
func TestStatFailures(t *testing.T) {
	answer := func(status int, text string) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, status) }))
		t.Cleanup(server.Close)
		return strings.TrimPrefix(server.URL, "http://")
	}
	unread := `{"pods":[{"namespace":"shop","name":"a","problem":"no answer"}],"services":[]}`
	for name, tt := range map[string]struct{ address, want string }{
		"nobody":           {"127.0.0.1:1", "the debug pages may be disabled"},
		"an older version": {answer(http.StatusNotFound, "404 page not found"), "run 'outrigger upgrade'"},
		"not allowed":      {answer(http.StatusForbidden, "user x may not"), "run 'outrigger upgrade'"},
		"overloaded":       {answer(http.StatusServiceUnavailable, "too slow"), "too slow"},
		"not JSON":         {answer(http.StatusOK, "hello"), "reading the controller's answer"},
		"no proxy read":    {answer(http.StatusOK, unread), errReported.Error()},
	} {
		if _, _, err := run(t.Context(), "stat", "po", "--debug-address", tt.address); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tt.want)
		}
	}
}

func TestEdges(t *testing.T) {
	for args, tt := range map[string]struct{ stdout, query string }{
		"edges": {`
SOURCE     DESTINATION   CLIENT     SERVER      REQUESTS   CONNECTIONS   MTLS   DENIED
shop/web   shop/cart     shop/web   shop/cart   200        0             100%   20 (access)
`, "period=0s"},
		"edges deploy/cart -n shop --window 10s -o wide": {`
SOURCE     DESTINATION   CLIENT     SERVER      REQUESTS/S   CONNECTIONS/S   MTLS   DENIED/S       SERVICES   SUCCESS   P50     P95     P99
shop/web   shop/cart     shop/web   shop/cart   20.0         0.0             100%   2.0 (access)   cart       99.0%     5.0ms   9.5ms   9.9ms
`, "period=10s"},
	} {
		address, queries := trafficServer(t)
		stdout, stderr, err := run(t.Context(), append(strings.Fields(args), "--debug-address", address)...)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.TrimPrefix(tt.stdout, "\n"), stdout); diff != "" {
			t.Errorf("%s (-want +got):\n%s", args, diff)
		}
		if got := strings.Join(*queries, " "); got != tt.query || stderr != unreadCart {
			t.Errorf("%s: the controller is asked for %q, want %q; warnings %s", args, got, tt.query, stderr)
		}
	}
}

// TestTop ends the command after its second table.
func TestTop(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch asked++; asked {
		case 1:
			_ = json.NewEncoder(w).Encode(trafficReport(1))
		case 2:
			http.Error(w, "restarting", http.StatusServiceUnavailable)
		default:
			cancel()
		}
	}))
	t.Cleanup(server.Close)
	stdout, stderr, err := run(ctx, "top", "--interval", "1s", "--debug-address", strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	first, second, _ := strings.Cut(stdout, "\n\n")
	if cart, web := strings.Index(first, "deployment/cart"), strings.Index(first, "deployment/web"); cart < 0 || web < cart || !strings.Contains(first, unreadCart) {
		t.Errorf("the first table is not sorted by rate, or has no warning:\n%s", first)
	}
	if !strings.Contains(second, "error: GET /debug/traffic: 503") {
		t.Errorf("the failure is not shown:\n%s", second)
	}
	if stderr != "reading the proxies for 1s\n" {
		t.Errorf("to stderr: %s", stderr)
	}
}

func TestFit(t *testing.T) {
	for want, tt := range map[string]struct {
		page          string
		width, height int
	}{
		"abc\nüb\n": {"abcdef\nüb\ncut\n", 3, 3},
		"a\n":       {"a\n", 80, 25},
		"":          {"a\n", 80, 1},
	} {
		if got := string(fit([]byte(tt.page), tt.width, tt.height)); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestStatPrometheus has a server that answers the queries for requests as Prometheus does.
func TestStatPrometheus(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.FormValue("query")
		result := ""
		if strings.Contains(query, "outrigger_requests_total") {
			asked = append(asked, r.URL.Path+" "+query)
			result = `{"metric":{"reporter":"destination","class":"pipy","source_namespace":"shop","source_service_account":"web","destination_workload":"cart",` +
				`"destination_namespace":"shop","destination_service_account":"cart","response_code":"200","tls":"mutual","namespace":"shop","pod":"cart-0"},"value":[1,"600"]}`
		}
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[%s]}}`, result)
	}))
	t.Cleanup(server.Close)
	stdout, _, err := run(t.Context(), "stat", "deploy", "-A", "-o", "wide", "--prometheus", server.URL+"/prom", "--window", "10m")
	if err != nil {
		t.Fatal(err)
	}
	want := `NAMESPACE   NAME   PODS   RPS   SUCCESS   P50   P95   P99   CONN/S   RECEIVED/S   SENT/S   MTLS   DENIED/S   RETRIES/S   CLASS   CODES
shop        cart   1/1    1.0   100%      -     -     -     0.0      0B           0B       100%   0.0        0.0         pipy    200=1.0
`
	if diff := cmp.Diff(want, stdout); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	wantQuery := "/prom/api/v1/query sum by (reporter, class, source_workload, source_namespace, source_service_account, destination_workload, " +
		"destination_namespace, destination_service_account, destination_service, protocol, response_code, grpc_status, tls, namespace, pod, instance) " +
		"(increase(outrigger_requests_total[10m]))"
	if diff := cmp.Diff([]string{wantQuery}, asked); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := url.Parse(server.URL); err != nil {
		t.Fatal(err)
	}
}
