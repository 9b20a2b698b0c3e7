package xds

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/mesh"
)

func (h *harness) page(target string) (int, string) {
	w := httptest.NewRecorder()
	h.server.Debug().ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
	return w.Code, w.Body.String()
}

func TestDebugStreams(t *testing.T) {
	h := newCore(t).serve(t, forever)
	c := connected(t, h)
	h.set("p", shop.with(clusters, "a", "bad").with(endpoints, "b@1", "2"))
	c.refuse("Cluster a=bad", "no such thing")
	c.want("Endpoint b@1=2")
	c.subscribe(endpoints, "nowhere")
	c.quiet()
	code, body := h.page("/debug/xds")
	var got []streamPage
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != http.StatusOK || len(got) != 1 {
		t.Fatalf("the page is %d %s (%v)", code, body, err)
	}
	p := got[0]
	if p.Proxy != "shop/pod-p" || p.UID != "p" || p.Client != "test 1" || p.Protocol != "delta" || !p.Busy || p.View == "" {
		t.Errorf("the stream is shown as %+v", p)
	}
	if diff := cmp.Diff(map[string]string{"Cluster a": "no such thing"}, p.Refused); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	var types []string
	for _, of := range p.Types {
		types = append(types, of.Type)
		if of.Type == "Endpoint" && (of.Names != 3 || of.Unknown != 1 || of.Unanswered == "" || of.Pending != 2) {
			t.Errorf("endpoints are shown as %+v", of)
		}
	}
	if got := strings.Join(types, " "); !strings.HasPrefix(got, "Secret Cluster Endpoint Listener Route") {
		t.Errorf("the types are %s", got)
	}
}

// TestDebugResources shows resources without their secrets.
func TestDebugResources(t *testing.T) {
	const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	source := func(text string) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}}
	}
	body, err := proto.Marshal(&tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: source("the chain"), PrivateKey: source("the key"), Password: source("the word"),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	h := newCore(t).serve(t, forever)
	config := shop.config(nil)
	config[0] = config[0].With(mesh.Change[*Resource]{Name: "s", Value: NewResource(secretType, "s", mesh.DigestBytes(body), body)})
	h.put(proxyOf("p"), config)
	code, page := h.page("/debug/xds?proxy=p")
	if code != http.StatusOK || !strings.Contains(page, "the chain") || !strings.Contains(page, `"alt_stat_name": "1"`) {
		t.Errorf("the page is %d\n%s", code, page)
	}
	if strings.Contains(page, "the key") || strings.Contains(page, "the word") {
		t.Errorf("the page shows a secret:\n%s", page)
	}
	if code, _ := h.page("/debug/xds?proxy=nobody"); code != http.StatusNotFound {
		t.Errorf("status for an unknown proxy is %d", code)
	}
	w := httptest.NewRecorder()
	h.server.Debug().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/debug/xds", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("a POST is answered by %d", w.Code)
	}
}
