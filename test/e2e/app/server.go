package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// serve serves every protocol of a probe. It continues for a while after the signal to stop,
// since others may not know yet that it ends.
func serve(stopped context.Context, begin, end time.Duration) error {
	select {
	case <-stopped.Done():
		return nil
	case <-time.After(begin):
	}
	certificate, err := selfSigned()
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
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}},
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

// selfSigned returns a certificate, which kubelets do not verify.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), DNSNames: []string{"localhost"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
