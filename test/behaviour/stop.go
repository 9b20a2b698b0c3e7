package behaviour

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// stopPort serves gRPC.
const stopPort = 9703

// testStop stops a server of gRPC while a stream is open. The server announces that by GOAWAY
// twice if it stops gracefully, as all of gRPC's do.
func testStop(t *testing.T, w *testMesh) {
	w.apply(t, "stop.yaml", service("stop", fmt.Sprintf("selector: {app: cart, version: v1}, ports: [{name: grpc-stop, port: %d}]", stopPort))+
		routeGroup("shop/stop", ` [{name: all, pathRegex: ".*", methods: ["*"]}]`)+
		trafficTarget("shop/stop", "cart-v1", "{kind: HTTPRouteGroup, name: stop}", "users/web"))
	client, err := grpc.NewClient(fmt.Sprintf("passthrough:///stop.shop:%d", stopPort), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return w.pod(t, "users/web").Dial(ctx, "tcp", address)
		}), grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()

	server := w.serveEcho(t)
	stream := w.openEcho(t, client)
	stopped := make(chan struct{})
	go func() {
		server.GracefulStop()
		close(stopped)
	}()
	for n := range 5 {
		time.Sleep(100 * time.Millisecond)
		if err := echo(stream); err != nil {
			t.Fatalf("message %d after the start of a graceful stop: %v", n+1, err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	var message []byte
	if err := stream.RecvMsg(&message); !errors.Is(err, io.EOF) {
		t.Errorf("a stream that a server finishes while it stops ends with %v, want %v", err, io.EOF)
	}
	<-stopped

	server = w.serveEcho(t)
	stream = w.openEcho(t, client)
	began := time.Now()
	server.Stop()
	err = stream.RecvMsg(&message)
	if took := time.Since(began); err == nil || errors.Is(err, io.EOF) || took > cutPatience {
		t.Errorf("a stream whose server stops at once ends with %v after %s, want an error within %s", err, took, cutPatience)
	}
}

// serveEcho serves streams in cart-v1 that echo.
func (w *testMesh) serveEcho(t *testing.T) *grpc.Server {
	t.Helper()
	l, err := w.pod(t, "shop/cart-v1").Listen(t.Context(), "tcp", fmt.Sprintf(":%d", stopPort))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		for {
			var message []byte
			err := stream.RecvMsg(&message)
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err == nil {
				err = stream.SendMsg(&message)
			}
			if err != nil {
				return err
			}
		}
	}))
	go server.Serve(l)
	t.Cleanup(server.Stop)
	return server
}

// openEcho opens a stream, and tries again until the sidecars know the policies.
func (w *testMesh) openEcho(t *testing.T, client *grpc.ClientConn) grpc.ClientStream {
	t.Helper()
	var stream grpc.ClientStream
	w.eventually(t, func() error {
		var err error
		// Its end is the test's, since the stream is used afterwards.
		stream, err = client.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/echo.Echo/Chat", grpc.WaitForReady(false))
		if err != nil {
			return err
		}
		return echo(stream)
	})
	return stream
}

// echo sends a message, and receives it.
func echo(stream grpc.ClientStream) error {
	message := []byte("hello")
	if err := stream.SendMsg(&message); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var answer []byte
	if err := stream.RecvMsg(&answer); err != nil {
		return err
	}
	if string(answer) != string(message) {
		return fmt.Errorf("the echo is %q", answer)
	}
	return nil
}
