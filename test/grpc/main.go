// Command app is an ordinary gRPC application that gets its configuration by xDS: a client
// or a server of the health service. It has a module of its own, since gRPC's xDS client
// needs many modules that nothing else here does.
//
//	app serve ADDRESS NAME   answers with the header "server: NAME"
//	app call TARGET          makes a call for each line, which is the path of a method
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"
)

func main() {
	log.SetFlags(0)
	switch {
	case len(os.Args) == 4 && os.Args[1] == "serve":
		log.Fatal(serve(os.Args[2], os.Args[3]))
	case len(os.Args) == 3 && os.Args[1] == "call":
		if err := call(os.Args[2]); err != nil {
			log.Fatal(err)
		}
	default:
		log.Fatal("usage: app serve ADDRESS NAME | app call TARGET")
	}
}

// health answers every check with its name in a header.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	name string
}

func (h health) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	if err := grpc.SetHeader(ctx, metadata.Pairs("server", h.name)); err != nil {
		return nil, err
	}
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
}

func (h health) List(ctx context.Context, _ *grpc_health_v1.HealthListRequest) (*grpc_health_v1.HealthListResponse, error) {
	return &grpc_health_v1.HealthListResponse{}, grpc.SetHeader(ctx, metadata.Pairs("server", h.name))
}

func serve(address, name string) error {
	creds, err := xdscreds.NewServerCredentials(xdscreds.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return err
	}
	server, err := xds.NewGRPCServer(grpc.Creds(creds), xds.ServingModeCallback(func(_ net.Addr, args xds.ServingModeChangeArgs) {
		fmt.Println(args.Mode, args.Err)
	}))
	if err != nil {
		return err
	}
	grpc_health_v1.RegisterHealthServer(server, health{name: name})
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return server.Serve(listener)
}

// call writes a line for each call: the status, and the server's name or the message.
func call(target string) error {
	creds, err := xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds))
	if err != nil {
		return err
	}
	defer conn.Close()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		var header metadata.MD
		err := conn.Invoke(ctx, lines.Text(), &grpc_health_v1.HealthCheckRequest{}, &grpc_health_v1.HealthCheckResponse{}, grpc.Header(&header))
		cancel()
		if err != nil {
			fmt.Printf("%s %q\n", status.Code(err), status.Convert(err).Message())
			continue
		}
		fmt.Println("OK", header.Get("server"))
	}
	return nil
}
