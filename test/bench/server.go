package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// hello is the first line that a server writes to its standard output.
type hello struct {
	Address string
	Root    []byte
}

// cpuPath is the path that returns the server's CPU time in nanoseconds.
const cpuPath = "/cpu"

// serveReviews serves the webhook on a free loopback port.
func serveReviews() error {
	webhook, err := newWebhook()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	webhook.Mount(mux)
	var answer recorder
	request, err := http.NewRequest(http.MethodPost, injectPath, bytes.NewReader(review(0)))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	webhook.ServeHTTP(&answer, request)
	mux.HandleFunc(echoPath, func(rw http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		rw.Header().Set("Content-Length", strconv.Itoa(answer.Len()))
		_, _ = rw.Write(answer.Bytes())
	})
	mux.HandleFunc(cpuPath, func(rw http.ResponseWriter, _ *http.Request) {
		used, err := cpuTime()
		if err != nil {
			http.Error(rw, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(rw, used.Nanoseconds())
	})
	authority, err := drivertest.NewAuthority()
	if err != nil {
		return err
	}
	certificate, err := authority.Issue(&x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, 24*time.Hour)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}},
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = server.Close()
	}()
	if err := json.NewEncoder(os.Stdout).Encode(hello{listener.Addr().String(), authority.Leaf.Raw}); err != nil {
		return err
	}
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// recorder keeps the body of an answer.
type recorder struct{ bytes.Buffer }

func (*recorder) Header() http.Header { return http.Header{} }
func (*recorder) WriteHeader(int)     {}

// server is a server in another process.
type server struct {
	address string
	roots   *x509.CertPool
	process *exec.Cmd
	stdin   io.Closer
}

// startServer runs this program again as a server.
func startServer() (*server, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &server{process: exec.Command(program, "-serve"), roots: x509.NewCertPool()}
	s.process.Stderr = os.Stderr
	if s.stdin, err = s.process.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := s.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.process.Start(); err != nil {
		return nil, err
	}
	var h hello
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &h)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting the server: %w", err), s.stop())
	}
	root, err := x509.ParseCertificate(h.Root)
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	s.roots.AddCert(root)
	s.address = h.Address
	return s, nil
}

// stop stops the server by closing its standard input.
func (s *server) stop() error {
	return errors.Join(s.stdin.Close(), s.process.Wait())
}

func (s *server) tls(protocol string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: s.roots, ServerName: "127.0.0.1", NextProtos: []string{protocol}}
}
