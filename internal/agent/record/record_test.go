package record

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

func newTestCounter() *counter {
	return newCounter(Workload{
		Identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"}, Class: "some", Name: "cart-v1",
	}, &agentspec.Records{Reasons: []agentspec.Reason{{Text: "no way", Reason: telemetry.ReasonNoRoute}, {Text: "broken TLS", Reason: telemetry.ReasonCertificate}}}, new(kit.Metrics))
}

const (
	webPeer  = "spiffe://cluster.local/ns/users/sa/web"
	fromWeb  = `{reporter="destination",class="some",source_workload="",source_namespace="users",source_service_account="web",destination_workload="cart-v1",destination_namespace="shop",destination_service_account="cart",destination_service="",protocol=`
	fromSome = `{reporter="destination",class="some",source_workload="",source_namespace="",source_service_account="",destination_workload="cart-v1",destination_namespace="shop",destination_service_account="cart",destination_service="",protocol=`
	toBooks  = `{reporter="source",class="some",source_workload="cart-v1",source_namespace="shop",source_service_account="cart",destination_workload="",destination_namespace="library",destination_service_account="books",destination_service="books",protocol=`
)

// TestRecords counts one line and compares the samples that are not zero.
func TestRecords(t *testing.T) {
	for _, c := range []struct {
		name, line string
		want       []string
	}{
		{"a request", "<30>1 - haproxy 7 - line=7/1 record=2000000400-2000000000;120;4096;r0;destination;http;200;;tls;" + webPeer + ";;; more",
			[]string{
				`outrigger_requests_total` + fromWeb + `"http",response_code="200",grpc_status="",tls="mutual"} 1`,
				`outrigger_request_duration_seconds_bucket` + fromWeb + `"http",le="0.0005"} 1`,
				`outrigger_request_duration_seconds_sum` + fromWeb + `"http"} 0.0004`,
				`outrigger_request_duration_seconds_count` + fromWeb + `"http"} 1`,
				`outrigger_request_bytes_total` + fromWeb + `"http"} 120`,
				`outrigger_response_bytes_total` + fromWeb + `"http"} 4096`,
			}},
		{"a repeated call of gRPC", "record=70000000;1;2;3;source;http;200;14;TLSv1.3;spiffe://cluster.local/ns/library/sa/books;library/books:80@books-0;outbound 200 - -",
			[]string{
				`outrigger_requests_total` + toBooks + `"grpc",response_code="200",grpc_status="14",tls="mutual"} 1`,
				`outrigger_request_duration_seconds_bucket` + toBooks + `"grpc",le="+Inf"} 1`,
				`outrigger_request_duration_seconds_sum` + toBooks + `"grpc"} 70`,
				`outrigger_retries_total` + toBooks + `"grpc"} 2`,
			}},
		{"a refused request", "record=10;0;0;-;destination;http;403;-;tls;" + webPeer + ";-;access PR",
			[]string{
				`outrigger_requests_total` + fromWeb + `"http",response_code="403",grpc_status="",tls="mutual"} 1`,
				`outrigger_denied_total` + fromWeb + `"http",reason="access"} 1`,
			}},
		{"a request that an audit would refuse", "record=10;0;0;-;destination;http;200;-;tls;" + webPeer + ";-;;denied; more",
			[]string{
				`outrigger_requests_total` + fromWeb + `"http",response_code="200",grpc_status="",tls="mutual"} 1`,
				`outrigger_audit_denied_total` + fromWeb + `"http",reason="access"} 1`,
			}},
		{"a connection in plaintext that an audit would refuse", "record=-;30;60;-;destination;tcp;-;-;;;;;denied\n",
			[]string{
				`outrigger_tcp_connections_total` + fromSome + `"tcp",tls="none"} 1`,
				`outrigger_audit_denied_total` + fromSome + `"tcp",reason="plaintext"} 1`,
			}},
		{"what an audit allows", "record=-;30;60;-;destination;tcp;-;-;TLSv1.3;" + webPeer + ";;;allowed",
			[]string{`outrigger_tcp_connections_total` + fromWeb + `"tcp",tls="mutual"} 1`}},
		{"a word that only begins like the audit's", "record=-;30;60;-;destination;tcp;-;-;TLSv1.3;" + webPeer + ";;;denied by nobody",
			[]string{`outrigger_tcp_connections_total` + fromWeb + `"tcp",tls="mutual"} 1`}},
		{"a reason in the proxy's words", "record=10;0;0;-;destination;http;404;-;-;-;-;there is no way to it",
			[]string{`outrigger_denied_total` + fromSome + `"http",reason="no_route"} 1`}},
		{"a connection", "record=-;30;60;-;destination;tcp;-;-;TLSv1.3;" + webPeer + ";;",
			[]string{
				`outrigger_tcp_connections_total` + fromWeb + `"tcp",tls="mutual"} 1`,
				`outrigger_tcp_received_bytes_total` + fromWeb + `"tcp"} 30`,
				`outrigger_tcp_sent_bytes_total` + fromWeb + `"tcp"} 60`,
			}},
		{"a certificate that nobody has verified", "record=-;0;0;-;destination;tcp;-;-;TLSv1.3;" + webPeer + ";;broken TLS",
			[]string{`outrigger_denied_total` + fromSome + `"tcp",reason="certificate"} 1`}},
		{"an identity of another mesh", "record=1;0;0;-;destination;http;200;-;TLSv1.3;spiffe://other/ns/users/sa/web;;",
			[]string{`outrigger_requests_total` + fromSome + `"http",response_code="200",grpc_status="",tls="tls"} 1`}},
		{"a request without an answer", "record=5-;0;0;-;destination;http;-1;-;-;-;-;-",
			[]string{`outrigger_requests_total` + fromSome + `"http",response_code="0",grpc_status="",tls="none"} 1`}},
		{"codes that an application made up", "record=1;0;0;-;destination;http;99;4711;-;-;-;-",
			[]string{`outrigger_requests_total` + fromSome + `"grpc",response_code="0",grpc_status="",tls="none"} 1`}},
		{"a malformed request", "record=-;0;0;r0;destination;;400;;;;;invalid_request PR 400",
			[]string{`outrigger_denied_total` + fromSome + `"http",reason="invalid_request"} 1`}},
		{"a connection that ended before it was forwarded", "record=-;0;0;r0;destination;;-1;;;;; PR -1", nil},
		{"what another frontend counts", "record=-;0;0;r0;1destination;tcp;-1;;;;;", nil},
		{"too few fields", "record=-;0;0;r0;destination;tcp;200", nil},
		{"no record", "something else", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			counter := newTestCounter()
			counter.count([]byte(c.line + "\n"))
			var page strings.Builder
			counter.write(&page)
			for _, want := range c.want {
				if !strings.Contains(page.String(), want+"\n") {
					t.Errorf("%s is missing in\n%s", want, page.String())
				}
			}
			audited := slices.ContainsFunc(c.want, func(want string) bool { return strings.HasPrefix(want, telemetry.AuditDenied) })
			if strings.Contains(page.String(), telemetry.AuditDenied+"{") != audited {
				t.Errorf("an audit counts it: %t, want %t, in\n%s", !audited, audited, page.String())
			}
			if c.want == nil && strings.Contains(page.String(), "{") {
				t.Errorf("it is counted:\n%s", page.String())
			}
		})
	}
}

// TestEdgesAreBounded also shows that no request is lost.
func TestEdgesAreBounded(t *testing.T) {
	counter := newTestCounter()
	const more = 50
	for i := range maxEdges + more {
		counter.count(fmt.Appendf(nil, "record=1;0;0;-;destination;http;200;-;tls;spiffe://cluster.local/ns/users/sa/web-%d;;\n", i))
	}
	var page strings.Builder
	counter.write(&page)
	if want := fmt.Sprintf(`outrigger_requests_total%s"http",response_code="200",grpc_status="",tls="mutual"} %d`, fromSome, more); !strings.Contains(page.String(), want) {
		t.Errorf("%s is missing", want)
	}
	if n := strings.Count(page.String(), "\noutrigger_requests_total{"); n != maxEdges+1 {
		t.Errorf("there are %d series, want %d", n, maxEdges+1)
	}
	if n := len(counter.kinds); n > maxKinds {
		t.Errorf("%d kinds are remembered, want at most %d", n, maxKinds)
	}
}

// TestTwins counts lines that come from two pipes, some of them only once.
func TestTwins(t *testing.T) {
	// One pipe after the other would need more memory than for 16 lines.
	twins, first := newTwins(2000), 0
	var mu sync.Mutex
	var pipes sync.WaitGroup
	for pipe := range 2 {
		pipes.Go(func() {
			for i := range 1000 {
				if i%100 == 50+pipe {
					continue
				}
				if !twins.isSecond(fmt.Appendf(nil, "<30>1 line=%d/%d record=", 7+i%2, i)) {
					mu.Lock()
					first++
					mu.Unlock()
				}
			}
		})
	}
	pipes.Wait()
	if first != 1000 {
		t.Errorf("%d lines were counted, want 1000", first)
	}
}
