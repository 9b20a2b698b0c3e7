package behaviour

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"
)

// oddWorkers is the number of concurrent connections with odd messages, and oddWait how long
// each waits for an answer.
const (
	oddWorkers = 24
	oddWait    = 300 * time.Millisecond
)

// sample returns the odd messages of this pair: a seventh of them, so that the pairs of a table
// have all of them together, or all if BEHAVIOUR_ODD=all.
func (w *testMesh) sample(all []odd) []odd {
	if os.Getenv("BEHAVIOUR_ODD") == "all" {
		return all
	}
	const parts = 7
	var out []odd
	first := 0
	for _, c := range w.Pair.String() {
		first += int(c)
	}
	for i := first % parts; i < len(all); i += parts {
		out = append(out, all[i])
	}
	return out
}

// inParallel calls the function with each index below n.
func inParallel(n int, f func(i int)) {
	var group sync.WaitGroup
	next := make(chan int)
	for range oddWorkers {
		group.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	group.Wait()
}

// sendOdd sends each text on a connection of its own. Proxies may answer in any way.
func sendOdd(t *testing.T, texts []odd, dial func(ctx context.Context) (net.Conn, error)) {
	t.Helper()
	inParallel(len(texts), func(i int) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		conn, err := dial(ctx)
		if err != nil {
			t.Errorf("%.60q: %v", texts[i].name, err)
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(oddWait))
		_, _ = io.WriteString(conn, texts[i].raw)
		_, _ = io.Copy(io.Discard, conn)
	})
}

// meshDialer returns a function that connects to the server's proxy as users/web, without the
// client's proxy.
func (w *testMesh) meshDialer(t *testing.T) func(ctx context.Context) (net.Conn, error) {
	config := w.meshTLSOf(t, w.certificate(t, webIdentity))
	config.NextProtos = []string{"http/1.1"}
	address := w.address(t, "shop/cart-v1", "8080")
	return func(ctx context.Context) (net.Conn, error) {
		conn, err := w.Lab().Node().Dial(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return tls.Client(conn, config), nil
	}
}

// clientDialer returns a function that connects to the service as the application of users/web.
func (w *testMesh) clientDialer(t *testing.T) func(ctx context.Context) (net.Conn, error) {
	web := w.pod(t, "users/web")
	return func(ctx context.Context) (net.Conn, error) { return web.Dial(ctx, "tcp", "cart-v1.shop:80") }
}

// testHidden sends allowed requests that contain one that is not allowed, for one of two
// readings: through both proxies, and to the server's alone.
func testHidden(t *testing.T, w *testMesh) {
	w.get(t, "users/web", cartV1, ok)
	texts := append(w.sample(oddRequests()), knownAttacks()...)
	sendOdd(t, texts, w.clientDialer(t))
	sendOdd(t, texts, w.meshDialer(t))
	for range 5 {
		w.get(t, "users/web", cartV1, ok)
	}
	if n := w.apps["shop/cart-v1"].count("/hidden"); n != 0 {
		t.Errorf("the application got %d requests that the client may not send", n)
	}
}

// testBroken has an application answer with what parsers refuse, and breaks handshakes.
// Whether a proxy has ended is checked after every row.
func testBroken(t *testing.T, w *testMesh) {
	w.get(t, "users/web", cartV1, ok)
	answers := w.sample(oddAnswers())
	w.apps["shop/cart-v1"].setRaw(answers)
	inParallel(2*len(answers), func(i int) {
		if i%2 == 0 {
			// How the request ends does not matter.
			_, _ = w.send(w.pod(t, "users/web"), request{url: fmt.Sprintf("%s?raw=%d", cartV1, i/2), timeout: time.Second})
			return
		}
		if r, err := w.send(w.pod(t, "users/web"), request{url: cartV1}); err == nil && r.Pod == "hidden" {
			t.Errorf("after %.60q a request got the answer to another one", answers[i/2].name)
		}
	})
	hello := clientHello(t, "cart-v1.shop.sa.cluster.local")
	random := rand.New(rand.NewPCG(1, 2))
	var hellos []odd
	for i := range 40 {
		broken := append([]byte(nil), hello...)
		for range 1 + i%4 {
			broken[random.IntN(len(broken))] ^= byte(1 + random.IntN(255))
		}
		hellos = append(hellos, odd{fmt.Sprintf("handshake %d", i), string(broken)})
	}
	address := w.address(t, "shop/cart-v1", "8080")
	sendOdd(t, hellos, func(ctx context.Context) (net.Conn, error) { return w.Lab().Node().Dial(ctx, "tcp", address) })
	for range 5 {
		w.get(t, "users/web", cartV1, ok)
	}
}

// setRaw sets the raw answers that requests ask for by number.
func (a *application) setRaw(answers []odd) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.raw = answers
}

// answerRaw answers with a raw answer.
func answerRaw(w http.ResponseWriter, raw string) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, raw)
	// A proxy that takes the answer for complete may send the next request meanwhile.
	_ = conn.SetDeadline(time.Now().Add(oddWait))
	_, _ = io.Copy(io.Discard, conn)
}
