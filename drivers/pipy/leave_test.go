package pipy

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestClientsAreAskedToLeave checks that all threads ask clients of HTTP/1 to leave once the agent
// has told one of them, and that nobody outside the pod can do that.
func TestClientsAreAskedToLeave(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	w.service("store", 80, mesh.HTTP, "10.96.0.1", at(s.peer(t, storeName, http.HandlerFunc(describe)), storeName))
	s.apply(t, w.view())
	client := &http.Client{Transport: &http.Transport{DialContext: s.Dial}}
	defer client.CloseIdleConnections()
	closes := func() bool {
		t.Helper()
		response, err := client.Get("http://10.96.0.1/")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if response.StatusCode != 200 {
			t.Fatalf("a request gets %d", response.StatusCode)
		}
		return response.Close
	}
	leave := func(dial func() *http.Transport, host string) int {
		t.Helper()
		response, err := (&http.Client{Transport: dial()}).Post("http://"+host+":15010/leave", "", strings.NewReader(""))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		return response.StatusCode
	}
	node := func() *http.Transport { return &http.Transport{DialContext: s.lab.Node().Dial} }
	pod := func() *http.Transport { return &http.Transport{DialContext: s.Dial} }
	if status := leave(node, s.Addresses()[0].String()); status != 404 {
		t.Errorf("from outside the answer is %d, want 404", status)
	}
	if closes() {
		t.Fatal("a client was asked to leave before")
	}
	conn, err := s.Dial(t.Context(), "tcp", "10.96.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if status := leave(pod, "127.0.0.1"); status != 200 {
		t.Fatalf("from the pod the answer is %d, want 200", status)
	}
	// Another thread looks every 100 ms.
	time.Sleep(500 * time.Millisecond)
	for range 20 {
		if !closes() {
			t.Fatal("a client was not asked to leave")
		}
	}
	staysOpen(t, conn)
}

// staysOpen checks that a connection is not closed before its first request.
func staysOpen(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("the connection gives %d bytes, %v; want none", n, err)
	}
}
