package behaviour

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

// leaverPod is a pod whose application leaves while the hook runs: a name and a class.
const leaverPod = `
---
apiVersion: v1
kind: Pod
metadata:
  name: %s
  namespace: shop
  labels: {app: leaver}
  annotations: {openservicemesh.io/sidecar-class: %s}
spec:
  serviceAccountName: cart-v1
  containers:
  - name: app
    image: in-the-test
    ports: [{name: http, containerPort: 8080}, {name: grpc, containerPort: 50051}]
    lifecycle: {preStop: {httpGet: {path: /leave, port: 8080}}}
`

var leaverService = service("leaver", "selector: {app: leaver}, ports: [{name: grpc, port: 50051}]")

// leaver is an application that serves gRPC, and stops gracefully when its hook is called.
type leaver struct {
	server  *grpc.Server
	leaving chan struct{}
	// left is set when the server has stopped.
	left atomic.Bool
}

// startLeaver starts the application, which calls a service all the time until it has left.
func startLeaver(t *testing.T, w *testMesh, pod *lab.Pod) *leaver {
	t.Helper()
	l := &leaver{leaving: make(chan struct{})}
	l.server = grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(l.echo))
	go l.server.Serve(listenOn(t, pod, ":50051"))
	t.Cleanup(l.server.Stop)
	calls := w.startLoad(pod, cartV1, 1)
	hook := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		// Meanwhile the clients learn that the endpoint ends.
		time.Sleep(2 * time.Second)
		close(l.leaving)
		l.server.GracefulStop()
		calls.more(t, 10)
		calls.end(t)
		l.left.Store(true)
		fmt.Fprint(rw, "left")
	})}
	t.Cleanup(func() { hook.Close() })
	go hook.Serve(listenOn(t, pod, ":8080"))
	return l
}

// echo echoes messages. When the application leaves, it ends streams with their next message.
func (l *leaver) echo(_ any, stream grpc.ServerStream) error {
	for {
		var message []byte
		if err := stream.RecvMsg(&message); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := stream.SendMsg(&message); err != nil {
			return err
		}
		select {
		case <-l.leaving:
			return nil
		default:
		}
	}
}

// testServerLeaves deletes one of two pods while a client calls both, over one connection, and has
// streams open. No call fails, whether of the client or of the application that leaves.
func testServerLeaves(t *testing.T, w *testMesh) {
	const stays, leaves = "leaver.yaml", "leaves.yaml"
	w.apply(t, stays, leaverService+fmt.Sprintf(leaverPod, "leaver-0", w.Server))
	startLeaver(t, w, w.pod(t, "shop/leaver-0"))
	w.apply(t, leaves, fmt.Sprintf(leaverPod, "leaver-1", w.Server))
	l := startLeaver(t, w, w.pod(t, "shop/leaver-1"))
	for _, pod := range []string{"shop/leaver-0", "shop/leaver-1"} {
		if err := w.pod(t, pod).Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	web := w.pod(t, "users/web")
	rpc, err := grpc.NewClient("passthrough:///leaver.shop:50051", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return web.Dial(ctx, "tcp", address) }),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	if err != nil {
		t.Fatal(err)
	}
	defer rpc.Close()
	call := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		sent, got := []byte("a call"), []byte(nil)
		return rpc.Invoke(ctx, "/town.Cart/Get", &sent, &got)
	}
	w.eventually(t, call)

	var mu sync.Mutex
	var failed []string
	total := 0
	add := func(what string, err error) {
		mu.Lock()
		defer mu.Unlock()
		total++
		if err != nil {
			failed = append(failed, fmt.Sprintf("%s after the application had left (%v): %v", what, l.left.Load(), err))
		}
	}
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
					add("a call", call())
				}
			}
		})
		// With Pipy, streams that this server ends lack a status: see the README of its codebase.
		if w.Client != "pipy" && w.Server != "pipy" {
			clients.Go(func() { add("a stream", converse(t.Context(), rpc, stop)) })
		}
	}
	time.Sleep(500 * time.Millisecond)
	w.forget(t, leaves)
	if !l.left.Load() {
		t.Error("the pod ended before its application had left")
	}
	time.Sleep(time.Second)
	close(stop)
	clients.Wait()
	if len(failed) > 0 {
		t.Errorf("%d of %d calls and streams failed:\n%s", len(failed), total, strings.Join(failed[:min(len(failed), 5)], "\n"))
	}
}

// converse has messages echoed over a stream until it is told to stop or the server ends the stream.
func converse(ctx context.Context, rpc *grpc.ClientConn, stop <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	stream, err := rpc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/town.Cart/Echo")
	if err != nil {
		return err
	}
	for {
		select {
		case <-stop:
			return nil
		case <-time.After(100 * time.Millisecond):
		}
		message := []byte("hello")
		if err := stream.SendMsg(&message); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err := stream.RecvMsg(&message); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
