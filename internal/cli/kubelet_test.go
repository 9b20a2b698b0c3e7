package cli

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// kubelet is a fake kubelet that only forwards ports and serves logs.
type kubelet struct {
	port int
	// logs are texts by NAMESPACE/POD/CONTAINER; with /previous, of the previous instance.
	logs sync.Map
	// pods are the addresses of pods by name. Other pods do not exist.
	pods sync.Map
}

func startKubelet(t *testing.T) *kubelet {
	t.Helper()
	k := &kubelet{}
	server := httptest.NewTLSServer(http.HandlerFunc(k.forward))
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if k.port, err = strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
	return k
}

// forward serves /portForward/NAMESPACE/POD and /containerLogs/NAMESPACE/POD/CONTAINER.
func (k *kubelet) forward(w http.ResponseWriter, r *http.Request) {
	if of, ok := strings.CutPrefix(r.URL.Path, "/containerLogs/"); ok {
		if r.URL.Query().Get("previous") == "true" {
			of += "/previous"
		}
		text, ok := k.logs.Load(of)
		if !ok {
			http.Error(w, "no such container", http.StatusNotFound)
			return
		}
		_, _ = fmt.Fprint(w, text)
		return
	}
	address, ok := k.pods.Load(path.Base(r.URL.Path))
	if !ok {
		http.Error(w, "no such pod", http.StatusNotFound)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
		return
	}
	// Each connection has two streams, one of them for errors.
	errors := make(chan httpstream.Stream, 10)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, replied <-chan struct{}) error {
		go func() {
			<-replied
			if s.Headers().Get("streamType") == "error" {
				errors <- s
				return
			}
			if err := k.copy(s, fmt.Sprint(address)); err != nil {
				_, _ = io.WriteString(<-errors, err.Error())
			}
			_ = s.Close()
		}()
		return nil
	})
	if conn == nil {
		return
	}
	<-conn.CloseChan()
	_ = conn.Close()
}

func (k *kubelet) copy(s httpstream.Stream, address string) error {
	conn, err := net.Dial("tcp", net.JoinHostPort(address, s.Headers().Get("port")))
	if err != nil {
		return err
	}
	defer conn.Close()
	go func() { _, _ = io.Copy(conn, s) }()
	_, err = io.Copy(s, conn)
	return err
}
