package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// dial returns a client of the target, with mesh TLS for xds targets and plaintext for
// others.
func dial(target string) (*grpc.ClientConn, error) {
	creds, err := xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(target, grpc.WithTransportCredentials(creds))
}

// call makes a call and describes its result: the status, and the server's name or the
// message. The server may send a stream of messages.
func call(conn *grpc.ClientConn, method string, header metadata.MD) string {
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(context.Background(), header), 5*time.Second)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	received := 0
	if err == nil {
		// If sending fails, receiving returns the status.
		_ = stream.SendMsg(&grpc_health_v1.HealthCheckRequest{})
		_ = stream.CloseSend()
		for err = stream.RecvMsg(&grpc_health_v1.HealthCheckResponse{}); err == nil; err = stream.RecvMsg(&grpc_health_v1.HealthCheckResponse{}) {
			received++
		}
	}
	if !errors.Is(err, io.EOF) {
		return fmt.Sprintf("%s %q", status.Code(err), status.Convert(err).Message())
	}
	answered, _ := stream.Header()
	if received > 1 {
		return fmt.Sprint("OK ", answered.Get("server"), " ", received)
	}
	return fmt.Sprint("OK ", answered.Get("server"))
}

// callLines makes a call for each line of the input, and writes a line for its result.
func callLines(target string) error {
	conn, err := dial(target)
	if err != nil {
		return err
	}
	defer conn.Close()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(call(conn, lines.Text(), nil))
	}
	return nil
}

// answer serves HTTP at the address. A request for
// /?target=TARGET&method=METHOD&times=3&header=a&fresh=true makes three calls with the
// header "x-kind: a", and is answered with a line for the result of each. Fresh calls use a
// new connection. Beside it the former one stays open, so that gRPC keeps its configuration:
// a client without one fails if the controller ends its stream before the first answer.
func answer(address string) error {
	var mu sync.Mutex
	conns := map[string]*grpc.ClientConn{}
	connTo := func(target string) (*grpc.ClientConn, error) {
		mu.Lock()
		defer mu.Unlock()
		if conn := conns[target]; conn != nil {
			return conn, nil
		}
		conn, err := dial(target)
		if err == nil {
			conns[target] = conn
		}
		return conn, err
	}
	return http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		conn, err := connTo(query.Get("target"))
		if err == nil && query.Get("fresh") != "" {
			if conn, err = dial(query.Get("target")); err == nil {
				defer conn.Close()
			}
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		times, _ := strconv.Atoi(query.Get("times"))
		header := metadata.MD{}
		if kind := query.Get("header"); kind != "" {
			header.Set("x-kind", kind)
		}
		for range max(1, times) {
			fmt.Fprintln(w, call(conn, query.Get("method"), header))
		}
	}))
}
