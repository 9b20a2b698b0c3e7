package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// serve serves every protocol of a probe. It continues for a while after the signal to stop,
// since others may not know yet that it ends.
func serve(stopped context.Context, begin, end time.Duration) error {
	select {
	case <-stopped.Done():
		return nil
	case <-time.After(begin):
	}
	// Kubelets do not verify the certificate.
	certificate, key, err := pki.NewCA("app", 24*time.Hour)
	if err != nil {
		return err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return err
	}
	answer := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, hostname) })
	plain := &http.Server{Addr: ":8080", Handler: answer, ReadHeaderTimeout: time.Minute}
	secure := &http.Server{
		Addr: ":8443", Handler: answer, ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{certificate.Raw}, PrivateKey: key}}},
	}
	checks := grpc.NewServer()
	healthpb.RegisterHealthServer(checks, health.NewServer())
	grpcListener, err := net.Listen("tcp", ":9000")
	if err != nil {
		return err
	}
	bare, err := net.Listen("tcp", ":7000")
	if err != nil {
		return err
	}
	failed := make(chan error, 4)
	go func() { failed <- plain.ListenAndServe() }()
	go func() { failed <- secure.ListenAndServeTLS("", "") }()
	go func() { failed <- checks.Serve(grpcListener) }()
	go func() {
		for {
			conn, err := bare.Accept()
			if err != nil {
				failed <- err
				return
			}
			_ = conn.Close()
		}
	}()
	select {
	case err := <-failed:
		return err
	case <-stopped.Done():
	}
	time.Sleep(end)
	ending, cancel := context.WithTimeout(context.WithoutCancel(stopped), 10*time.Second)
	defer cancel()
	return plain.Shutdown(ending)
}
