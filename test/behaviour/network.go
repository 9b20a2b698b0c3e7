package behaviour

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// longRows are rows that take too long for the table.
var longRows = []Row{
	{"A dead node", "When one of two servers is gone without a word, nothing that it was sent is pending after 30 s, by HTTP, gRPC or TCP, and requests reach the other server.", ofEvery, testDeadNode},
	{"A slow network", "While each packet from and to a server takes 0.1 to 0.2 s longer, so that packets overtake each other, every request, TCP connection and gRPC stream succeeds with the same bytes, and permissions begin and end.", ofEvery, testSlowNetwork},
	{"Long connections in a slow network", "TCP connections, WebSockets and gRPC streams stay open when the network becomes slow and packets overtake each other, while configurations change, and when it is fast again.", ofBoth(mesh.FeatureWebSocket, mesh.FeatureHTTP2), testHeldInSlowNetwork},
	{"Long connections under load", "TCP connections, WebSockets and gRPC streams stay open while configurations change 24 times, certificates are renewed every few seconds, and the machine is busy.", ofBoth(mesh.FeatureWebSocket, mesh.FeatureHTTP2), testHeldUnderLoad},
	{"Revocations under load", "When a permission is taken away, no request is admitted more than a second after the first one that was refused, however busy the machine is.", ofEvery, testRevocationsUnderLoad},
	{"A server leaves", "While one of two pods ends, whose application serves gRPC until its preStop hook has stopped it gracefully, no call of its clients fails, streams end as the application ends them, and its own calls succeed until then.", ofEvery, testServerLeaves},
}

// lose drops that percentage of the packets of a pod until the test's end.
func (w *testMesh) lose(t *testing.T, pod string, percent int) {
	t.Helper()
	of := w.pod(t, pod)
	if err := of.Lose(percent); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := of.Lose(0); err != nil {
			t.Error(err)
		}
	})
}

// testLoss drops one of twenty packets that a server gets, and as many that it sends.
func testLoss(t *testing.T, w *testMesh) {
	w.get(t, "users/web", cartV1, isFrom("cart-v1"))
	w.reads(t, w.pod(t, "users/web"), "cart-v1.shop:9000", "echo\n", "echo\n")
	w.eventually(t, func() error { return w.stream(t, "users/web", "/town.Cart/Echo") })
	w.lose(t, "shop/cart-v1", 5)
	const calls = 20
	var mu sync.Mutex
	var group sync.WaitGroup
	var failed []error
	call := func(f func() error) {
		for range calls {
			group.Go(func() {
				if err := f(); err != nil {
					mu.Lock()
					defer mu.Unlock()
					failed = append(failed, err)
				}
			})
		}
	}
	call(func() error {
		r, err := w.send(w.pod(t, "users/web"), request{url: cartV1, timeout: limit})
		if err == nil && r.Status == http.StatusOK && r.Pod != "cart-v1" {
			t.Errorf("the answer is of pod %q: %.100s", r.Pod, r.Body)
		}
		return errors.Join(err, isStatus(http.StatusOK)(r))
	})
	call(func() error { return w.echoes(w.pod(t, "users/web"), 100_000) })
	group.Wait()
	// The first packet of a connection is sent again after 1 s and 3 s, so some may be too late.
	if len(failed) > calls/4 {
		t.Errorf("%d of %d calls failed, the first: %v", len(failed), 2*calls, failed[0])
	}
	for _, err := range failed {
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errOtherBytes) {
			t.Error(err)
		}
	}
}

var errOtherBytes = errors.New("other bytes than were sent came back")

// echoes sends that many bytes to the echo server of cart-v1 and reads them again.
func (w *testMesh) echoes(from dialer, size int) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	conn, err := from.Dial(ctx, "tcp", "cart-v1.shop:9000")
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(limit))
	sent := bytes.Repeat([]byte("0123456789"), size/10)
	go func() { _, _ = conn.Write(sent) }()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if !bytes.Equal(sent, got) {
		return errOtherBytes
	}
	return nil
}

// deadNodeLimit is how long something may be pending that was sent to a dead node.
const deadNodeLimit = 30 * time.Second

// testDeadNode cuts one of two servers off while it is called.
func testDeadNode(t *testing.T, w *testMesh) {
	web := w.pod(t, "users/web")
	w.eventually(t, func() error { return w.stream(t, "users/web", "/town.Cart/Echo") })
	for _, pod := range []string{"cart-v1", "cart-v2"} {
		w.get(t, "users/web", cart, isFrom(pod))
	}
	connection, err := web.Dial(t.Context(), "tcp", "cart-v1.shop:9000")
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	if _, err := io.WriteString(connection, "before\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(connection, make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	rpc, err := grpc.NewClient("passthrough:///cart-v1.shop:50051", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return web.Dial(ctx, "tcp", address) }),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	if err != nil {
		t.Fatal(err)
	}
	defer rpc.Close()
	stream, err := rpc.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/town.Cart/Echo")
	if err != nil {
		t.Fatal(err)
	}
	message := []byte("before")
	if err := errors.Join(stream.SendMsg(&message), stream.RecvMsg(&message)); err != nil {
		t.Fatal(err)
	}

	w.lose(t, "shop/cart-v1", 100)
	var pending sync.WaitGroup
	took := make(chan string, 1000)
	measure := func(what string, f func() error) {
		pending.Go(func() {
			began := time.Now()
			err := f()
			if lasted := time.Since(began); lasted > deadNodeLimit {
				took <- fmt.Sprintf("%s took %s, and ended with %v", what, lasted.Round(time.Second), err)
			}
		})
	}
	patience := 3 * deadNodeLimit
	measure("a TCP connection", func() error {
		_ = connection.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(connection, "after\n")
		_, err := connection.Read(make([]byte, 1))
		return err
	})
	measure("a gRPC stream", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_ = stream.SendMsg(&message)
			var got []byte
			ended <- stream.RecvMsg(&got)
		}()
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	for range 60 {
		measure("a request", func() error {
			r, err := w.send(web, request{url: cart, timeout: patience})
			return errors.Join(err, isStatus(http.StatusOK)(r))
		})
		time.Sleep(50 * time.Millisecond)
	}
	pending.Wait()
	close(took)
	for text := range took {
		t.Error(text)
	}
	w.get(t, "users/web", cart, isFrom("cart-v2"))
}
