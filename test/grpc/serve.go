package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/xds"
)

// health answers every call with its name in a header.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	name string
}

var serving = &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}

func (h health) header() metadata.MD { return metadata.Pairs("server", h.name) }

func (h health) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return serving, grpc.SetHeader(ctx, h.header())
}

func (h health) List(ctx context.Context, _ *grpc_health_v1.HealthListRequest) (*grpc_health_v1.HealthListResponse, error) {
	return &grpc_health_v1.HealthListResponse{}, grpc.SetHeader(ctx, h.header())
}

// messages is how many messages a stream has.
const messages = 3

func (h health) Watch(_ *grpc_health_v1.HealthCheckRequest, stream grpc_health_v1.Health_WatchServer) error {
	if err := stream.SetHeader(h.header()); err != nil {
		return err
	}
	for range messages {
		if err := stream.Send(serving); err != nil {
			return err
		}
	}
	return nil
}

// server is a grpc.Server or an xds.GRPCServer.
type server interface {
	grpc.ServiceRegistrar
	Serve(net.Listener) error
}

func newServer() (server, error) {
	if os.Getenv("GRPC_XDS_BOOTSTRAP_CONFIG") == "" {
		return grpc.NewServer(), nil
	}
	creds, err := xdscreds.NewServerCredentials(xdscreds.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return nil, err
	}
	return xds.NewGRPCServer(grpc.Creds(creds), xds.ServingModeCallback(func(_ net.Addr, args xds.ServingModeChangeArgs) {
		fmt.Println(args.Mode, args.Err)
	}))
}

func serve(address, name string) error {
	server, err := newServer()
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
