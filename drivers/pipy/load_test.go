package pipy

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// load asks by so many clients until it is stopped, and returns how many requests were
// made and how many failed.
func (s *pipyPod) load(t *testing.T, clients int, url string) (stop func() (made, failed int)) {
	var group sync.WaitGroup
	var made, failed atomic.Int64
	done := make(chan struct{})
	for range clients {
		client := s.client()
		client.Transport.(*http.Transport).DisableKeepAlives = false
		group.Go(func() {
			defer client.CloseIdleConnections()
			for {
				select {
				case <-done:
					return
				default:
				}
				made.Add(1)
				response, err := client.Get(url)
				if err != nil {
					if failed.Add(1) == 1 {
						t.Log(err)
					}
					continue
				}
				io.Copy(io.Discard, response.Body)
				response.Body.Close()
				if response.StatusCode != 200 && failed.Add(1) == 1 {
					t.Log(response.Status)
				}
			}
		})
	}
	return func() (int, int) {
		close(done)
		group.Wait()
		return int(made.Load()), int(failed.Load())
	}
}

func TestSplitIsShiftedUnderLoad(t *testing.T) {
	w := newTown()
	s := startPod(t, w.view())
	d, one := w.service("store", 80, mesh.HTTP, "10.96.0.1", at(s.peer(t, storeName, http.HandlerFunc(tell)), storeName))
	_, two := w.service("store-v2", 80, mesh.HTTP, "10.96.0.2", at(s.peer(t, storeName, http.HandlerFunc(tell)), storeName), at(s.peer(t, storeName, http.HandlerFunc(tell)), storeName))
	s.apply(t, w.view())
	stop := s.load(t, 16, "http://10.96.0.1/")
	endpoints := two.Endpoints
	for i := range 20 {
		d.Routes = []mesh.Route{{Backends: []mesh.WeightedBackend{{Backend: one.Name, Weight: uint32(i % 3)}, {Backend: two.Name, Weight: uint32((i + 1) % 3)}}}}
		two.Endpoints = endpoints[:1+i%2]
		s.apply(t, w.view())
	}
	if made, failed := stop(); failed > 0 {
		t.Errorf("%d of %d requests failed", failed, made)
	}
}

func TestLoadOnly(t *testing.T) {
	w := newTown()
	s := startPod(t, w.view())
	w.service("store", 80, mesh.HTTP, "10.96.0.1", at(s.peer(t, storeName, http.HandlerFunc(tell)), storeName))
	s.apply(t, w.view())
	stop := s.load(t, 16, "http://10.96.0.1/")
	time.Sleep(4 * time.Second)
	made, failed := stop()
	t.Logf("%d requests", made)
	if failed > 0 {
		t.Errorf("%d of %d requests failed", failed, made)
	}
}
