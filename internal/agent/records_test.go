package agent

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// TestMetricsOfAllProxies lets a proxy write to a named pipe, and reads its metrics.
func TestMetricsOfAllProxies(t *testing.T) {
	t.Parallel()
	own := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "own_total 3") }))
	defer own.Close()
	p := newPod(t)
	p.env[agentspec.EnvClass], p.env[agentspec.EnvWorkload] = "some", "cart-v1"
	p.spec.ReadyURL = ""
	p.spec.Command = []string{"sh", "-c", `for i in 1 2 3; do echo 'record=10;0;0;-;source;http;200;-;-;-;library/books;-'; done > ` + p.path("records") + `; exec sleep 1000`}
	p.spec.Records = &agentspec.Records{File: p.path("records"), Metrics: own.URL}
	p.serve()
	p.start("--listen-metrics", p.ip+":15010")
	p.untilReady()
	p.until("the records are counted", func() bool { return p.number(`outrigger_agent_records_total{result="counted"}`) == 3 })
	client := &http.Client{Transport: &http.Transport{DialContext: p.dial}}
	answer, err := client.Get("http://" + p.ip + ":15010/stats/prometheus")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	page := string(text)
	if !strings.HasPrefix(page, "# HELP outrigger_requests_total ") || !strings.HasSuffix(page, "own_total 3\n") {
		t.Errorf("the page does not begin with the metrics of all proxies, or does not end with the proxy's own:\n%s", page)
	}
	if !strings.Contains(page, `destination_namespace="library",destination_service_account="",destination_service="books",protocol="http",response_code="200",grpc_status="",tls="none"} 3`) {
		t.Errorf("the requests are missing in\n%s", page)
	}
}
