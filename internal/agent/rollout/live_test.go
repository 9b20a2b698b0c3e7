package rollout

import (
	"net"
	"net/http"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// TestLivePolls sends more requests than may wait; the rest are answered at once.
func TestLivePolls(t *testing.T) {
	l := newLive("live/")
	if err := l.serve(mirror.NewSet(), "mark"); err != nil {
		t.Fatal(err)
	}
	for range maxPolls {
		l.polls <- struct{}{}
	}
	_, version, _ := l.feed.Current()
	server := &http.Server{Handler: l}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(listener)
	defer server.Close()
	client := mirror.Client{URL: "http://" + listener.Addr().String() + "/mirror"}
	if change, err := client.Poll(t.Context(), version); change != nil || err != nil {
		t.Errorf("one too many gets %v, %v", change, err)
	}
}
