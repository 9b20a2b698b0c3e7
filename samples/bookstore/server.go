package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// store sells books. It answers with its version and the caller's identity, from the
// header that its sidecar adds.
func store(ctx context.Context, s *settings) error {
	listen := cmp.Or(s.listen, ":14001")
	version := cmp.Or(s.version, hostname())
	warehouse := cmp.Or(s.upstream, "http://bookwarehouse.bookwarehouse")
	var sold atomic.Int64
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, r *http.Request, fields map[string]any) {
		fields["store"] = version
		if caller := r.Header.Get("X-Forwarded-Client-Cert"); caller != "" {
			fields["caller"] = caller
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Bookstore-Version", version)
		_ = json.NewEncoder(w).Encode(fields)
	}
	mux.HandleFunc("GET /books", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, map[string]any{"books": []string{"The Mesh", "The Sidecar", "The Outrigger"}})
	})
	mux.HandleFunc("GET /books/{id}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, map[string]any{"id": r.PathValue("id")})
	})
	mux.HandleFunc("GET /books-bought", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, map[string]any{"sold": sold.Load()})
	})
	buy := func(w http.ResponseWriter, r *http.Request) {
		n := sold.Add(1)
		fields := map[string]any{"sold": n}
		// Restocking happens occasionally and does not delay the answer.
		if n%10 == 0 {
			if err := restock(r.Context(), warehouse); err != nil {
				fields["restock"] = err.Error()
			}
		}
		answer(w, r, fields)
	}
	mux.HandleFunc("/buy-a-book", buy)
	mux.HandleFunc("/buy-a-book/new", buy)
	if err := serveReviews(ctx, cmp.Or(s.reviews, after(listen)), version); err != nil {
		return err
	}
	return serve(ctx, listen, mux)
}

func restock(ctx context.Context, warehouse string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, warehouse+"/restock", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the warehouse answers %s", response.Status)
	}
	return nil
}

// serveReviews serves the gRPC service bookstore.Reviews. Every method returns an empty
// message, with the version in the header "bookstore-version".
func serveReviews(ctx context.Context, address, version string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if err := stream.SetHeader(metadata.Pairs("bookstore-version", version)); err != nil {
			return err
		}
		return stream.SendMsg(new(grpcEmpty))
	}), grpc.ForceServerCodec(emptyCodec{}))
	context.AfterFunc(ctx, server.Stop)
	go func() { _ = server.Serve(listener) }()
	return nil
}

// grpcEmpty is a message without fields, encoded as no bytes.
type grpcEmpty struct{}

// emptyCodec supports only grpcEmpty.
type emptyCodec struct{}

func (emptyCodec) Marshal(any) ([]byte, error) { return nil, nil }
func (emptyCodec) Unmarshal([]byte, any) error { return nil }
func (emptyCodec) Name() string                { return "proto" }

// warehouse delivers books after checking its stock.
func warehouse(ctx context.Context, s *settings) error {
	database := cmp.Or(s.upstream, "stock-0.stock.bookwarehouse:3306")
	mux := http.NewServeMux()
	mux.HandleFunc("POST /restock", func(w http.ResponseWriter, r *http.Request) {
		greeting, err := greetingOf(r.Context(), database)
		if err != nil {
			http.Error(w, "the stock does not answer: "+err.Error(), http.StatusBadGateway)
			return
		}
		fmt.Fprintf(w, "one box of books, says %s", greeting)
	})
	return serve(ctx, cmp.Or(s.listen, ":14001"), mux)
}

// greetingOf returns the first line that a server sends.
func greetingOf(ctx context.Context, address string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	greeting := make([]byte, 64)
	n, err := conn.Read(greeting)
	if err != nil {
		return "", err
	}
	return string(greeting[:n]), nil
}

// stock sends a greeting and then reads until the client disconnects.
func stock(ctx context.Context, s *settings) error {
	listener, err := net.Listen("tcp", cmp.Or(s.listen, ":3306"))
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return ended(ctx, err)
		}
		go func() {
			defer conn.Close()
			if _, err := io.WriteString(conn, hostname()+" ready\n"); err == nil {
				_, _ = io.Copy(io.Discard, conn)
			}
		}()
	}
}

// gateway forwards requests unchanged.
func gateway(ctx context.Context, s *settings) error {
	upstream, err := url.Parse(cmp.Or(s.upstream, "http://bookstore-v1.bookstore"))
	if err != nil {
		return fmt.Errorf("--upstream: %w", err)
	}
	return serve(ctx, cmp.Or(s.listen, ":8080"), &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(upstream) },
	})
}

func serve(ctx context.Context, address string, handler http.Handler) error {
	server := &http.Server{Addr: address, Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(last)
	})
	err := server.ListenAndServe()
	if !stop() {
		<-closed
	}
	return ended(ctx, err)
}

// ended drops the error of a server that was stopped.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// after returns the address with the next port.
func after(address string) string {
	host, port, err := net.SplitHostPort(address)
	number, err2 := strconv.Atoi(port)
	if err != nil || err2 != nil {
		return ":14002"
	}
	return net.JoinHostPort(host, strconv.Itoa(number+1))
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "nobody"
	}
	return name
}
