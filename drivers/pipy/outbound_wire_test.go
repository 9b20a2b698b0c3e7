package pipy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// recorder is a server outside the mesh that records the requests that it reads according
// to the specification.
type recorder struct {
	address netip.AddrPort
	mu      sync.Mutex
	asked   []string
}

func (s *pipyPod) recorder(t *testing.T) *recorder {
	t.Helper()
	listener, err := s.lab.Node().Listen(context.Background(), "tcp", "198.18.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{address: listener.Addr().(*net.TCPAddr).AddrPort()}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		// Read the body first, so that no part of it is read as a request.
		body, err := io.ReadAll(request.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.asked = append(r.asked, fmt.Sprintf("%s %s %q %v", request.Method, request.URL, body, err))
	})}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return r
}

func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	asked := r.asked
	r.asked = nil
	return asked
}

// TestLengthsOfRequests sends body lengths that readers interpret differently, over a
// connection to the server that later requests reuse.
func TestLengthsOfRequests(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	r := s.recorder(t)
	w.egress.Ports = []mesh.EgressRoutes{{
		Port: r.address.Port(), Protocol: mesh.EgressHTTP, Hosts: []mesh.EgressHost{{Host: "outside.example", Matches: []mesh.HTTPMatch{{}}}},
	}}
	s.apply(t, w.view())
	host := fmt.Sprintf("Host: outside.example:%d\r\n", r.address.Port())
	ask := func(t *testing.T, text string) int {
		t.Helper()
		conn := s.dial(t, fmt.Sprintf("192.0.2.1:%d", r.address.Port()))
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		io.WriteString(conn, text)
		method, _, _ := strings.Cut(text, " ")
		response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
		if err != nil {
			return 0
		}
		return response.StatusCode
	}
	body := "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
	for name, tt := range map[string]struct {
		text  string
		want  int
		asked []string
	}{
		"a HEAD with a body":            {fmt.Sprintf("HEAD /first HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s", host, len(body), body), 400, nil},
		"a HEAD with chunks":            {"HEAD /first HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, nil},
		"a HEAD with an empty body":     {"HEAD /first HTTP/1.1\r\n" + host + "Content-Length: 0\r\n\r\n", 200, []string{`HEAD /first "" <nil>`}},
		"a length that is no number":    {"POST /first HTTP/1.1\r\n" + host + "Content-Length: 2x\r\n\r\nab", 400, nil},
		"a length with a sign":          {"POST /first HTTP/1.1\r\n" + host + "Content-Length: +2\r\n\r\nab", 400, nil},
		"no length":                     {"POST /first HTTP/1.1\r\n" + host + "Content-Length: \r\n\r\nab", 400, nil},
		"a length of more than 32 bits": {"POST /first HTTP/1.1\r\n" + host + "Content-Length: 4294967298\r\n\r\nab", 413, nil},
		"two lengths":                   {"POST /first HTTP/1.1\r\n" + host + "Content-Length: 30\r\nContent-Length: 2\r\n\r\nab", 400, nil},
		"a length":                      {"POST /first HTTP/1.1\r\n" + host + "Content-Length: 2\r\n\r\nab", 200, []string{`POST /first "ab" <nil>`}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ask(t, tt.text); got != tt.want {
				t.Errorf("the answer is %d, want %d", got, tt.want)
			}
			if got := ask(t, "GET /second HTTP/1.1\r\n"+host+"\r\n"); got != 200 {
				t.Errorf("the next request gets %d", got)
			}
			if got, want := r.take(), append(tt.asked, `GET /second "" <nil>`); !slices.Equal(got, want) {
				t.Errorf("the server received %q, want %q", got, want)
			}
		})
	}
}

// TestOutboundConnectionsAreApart lets clients send data after an upgrade request that is
// not answered, and disconnect. The data must not become a request of the next client.
func TestOutboundConnectionsAreApart(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	waiting := make(chan bool)
	store := s.peer(t, storeName, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/upgrade" {
			waiting <- true
			<-r.Context().Done()
		}
		w.Header().Set("X-Path", r.URL.Path)
	}))
	w.service("store", 80, mesh.HTTP, "10.96.0.1", at(store, storeName))
	s.apply(t, w.view())
	for i := range 20 {
		conn := s.dial(t, "10.96.0.1:80")
		io.WriteString(conn, "GET /upgrade HTTP/1.1\r\nHost: store\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nGET /stale HTTP/1.1\r\nHost: store\r\n\r\n")
		select {
		case <-waiting:
		case <-time.After(20 * time.Second):
			t.Fatal("the server receives no request")
		}
		conn.Close()
		conn = s.dial(t, "10.96.0.1:80")
		io.WriteString(conn, "GET /fresh HTTP/1.1\r\nHost: store\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || response.Header.Get("X-Path") != "/fresh" {
			t.Fatalf("after %d others a client gets %v, %v", i+1, response, err)
		}
		conn.Close()
	}
}

// TestStreamsThatAreGivenUp lets gRPC clients be refused while they still send, and
// disconnect during a stream. Other requests must succeed and get their own answers.
func TestStreamsThatAreGivenUp(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	var denied atomic.Bool
	rpc := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if denied.Load() {
			return status.Error(codes.PermissionDenied, "no")
		}
		var message []byte
		for stream.RecvMsg(&message) == nil {
			if err := stream.SendMsg(&message); err != nil {
				return err
			}
		}
		return nil
	}))
	store := at(s.peer(t, storeName, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 {
			rpc.ServeHTTP(w, r)
			return
		}
		w.Header().Set("X-Path", r.URL.Path)
	})), storeName)
	w.service("chat", 50051, mesh.GRPC, "10.96.0.1", store)
	w.service("store", 80, mesh.HTTP, "10.96.0.2", store)
	s.apply(t, w.view())
	chat := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		conn, err := grpc.NewClient("passthrough:///10.96.0.1:50051", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return s.Dial(ctx, "tcp", address) }),
			grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
		if err != nil {
			return err
		}
		defer conn.Close()
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/viewBuilder.Cart/Echo")
		if err != nil {
			return err
		}
		for range 5 {
			message := []byte("hello")
			if err := stream.SendMsg(&message); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			if err := stream.RecvMsg(&message); err != nil {
				return err
			}
		}
		return nil
	}
	for i := range 40 {
		denied.Store(i%4 != 3)
		want := codes.OK
		if denied.Load() {
			want = codes.PermissionDenied
		}
		if err := chat(); status.Code(err) != want {
			t.Fatalf("the stream %d ends with %v, want %v", i, err, want)
		}
		if denied.Load() {
			continue
		}
		for _, path := range []string{"/a", "/b"} {
			response, err := s.client().Get("http://10.96.0.2" + path)
			if err != nil {
				t.Fatalf("after %d streams: %v", i+1, err)
			}
			response.Body.Close()
			if got := response.Header.Get("X-Path"); got != path {
				t.Errorf("after %d streams %s gets %d and %q", i+1, path, response.StatusCode, got)
			}
		}
	}
}

// rawCodec does not encode messages.
type rawCodec struct{}

func (rawCodec) Name() string                  { return "raw" }
func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}
