// Command vault runs the real PKI secrets engine of Vault in memory, on a free port of
// loopback with TLS. The rest of Vault is not here: its core does not compile from
// modules, since each release is built with an SDK that is in its own tree only. What
// mounts engines, knows tokens and seals is a few lines of ours that follow the
// documented API; which status an error of the engine has is the SDK's own code.
//
// Its first line of output is JSON: address, the root token, and ca, the PEM that
// verifies the server. It ends when its standard input does.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/vault/builtin/logical/pki"
	"github.com/hashicorp/vault/sdk/logical"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "vault:", err)
		os.Exit(1)
	}
}

// server is what is around the engines.
type server struct {
	mu      sync.Mutex
	sealed  bool
	engines map[string]engine
	// policies are the one path that each allows; tokens have the name of theirs, and
	// the root token's is "".
	policies, tokens map[string]string
}

type engine struct {
	backend logical.Backend
	storage logical.Storage
}

func run() error {
	s := &server{engines: map[string]engine{}, policies: map[string]string{}, tokens: map[string]string{}}
	root := rand.Text()
	s.tokens[root] = ""
	certificate, ca, err := serverCertificate()
	if err != nil {
		return err
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}})
	if err != nil {
		return err
	}
	defer listener.Close()
	web := &http.Server{Handler: s}
	go web.Serve(listener)
	if err := json.NewEncoder(os.Stdout).Encode(map[string]string{
		"address": "https://" + listener.Addr().String(), "token": root, "ca": ca,
	}); err != nil {
		return err
	}
	io.Copy(io.Discard, os.Stdin)
	return web.Close()
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status, answer := s.answer(r)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(answer)
}

func refuse(status int, text string) (int, any) {
	return status, map[string]any{"errors": []string{text}}
}

func (s *server) answer(r *http.Request) (int, any) {
	path := strings.TrimPrefix(r.URL.Path, "/v1/")
	body := map[string]any{}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil && !errors.Is(err, io.EOF) {
		return refuse(http.StatusBadRequest, err.Error())
	}
	s.mu.Lock()
	policy, known := s.tokens[r.Header.Get("X-Vault-Token")]
	sealed, allowed := s.sealed, policy == "" || s.policies[policy] == path
	s.mu.Unlock()
	if sealed {
		return refuse(http.StatusServiceUnavailable, "Vault is sealed")
	}
	if !known || !allowed {
		return refuse(http.StatusForbidden, "permission denied")
	}
	if status, answer := s.core(r.Context(), path, body); status != 0 {
		return status, answer
	}
	s.mu.Lock()
	var at engine
	rest := ""
	for mount, e := range s.engines {
		if after, ok := strings.CutPrefix(path, mount+"/"); ok {
			at, rest = e, after
		}
	}
	s.mu.Unlock()
	if at.backend == nil {
		return refuse(http.StatusNotFound, fmt.Sprintf("no handler for route %q. route entry not found.", path))
	}
	var operation logical.Operation = logical.UpdateOperation
	if r.Method == http.MethodGet {
		operation = logical.ReadOperation
	}
	req := &logical.Request{Operation: operation, Path: rest, Data: body, Storage: at.storage, MountPoint: strings.TrimSuffix(path, rest)}
	response, err := at.backend.HandleRequest(r.Context(), req)
	if status, err := logical.RespondErrorCommon(req, response, err); err != nil {
		return refuse(status, err.Error())
	}
	if response == nil {
		return http.StatusOK, map[string]any{}
	}
	return http.StatusOK, map[string]any{"data": response.Data}
}

// core answers what Vault's core does; a status of 0 means that it is for an engine.
func (s *server) core(ctx context.Context, path string, body map[string]any) (int, any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := func(name string) string { t, _ := body[name].(string); return t }
	if mount, ok := strings.CutPrefix(path, "sys/mounts/"); ok {
		storage := &logical.InmemStorage{}
		backend, err := pki.Factory(ctx, &logical.BackendConfig{
			Logger: hclog.New(&hclog.LoggerOptions{Output: os.Stderr, Level: hclog.Warn}), StorageView: storage, BackendUUID: mount,
			System: &logical.StaticSystemView{DefaultLeaseTTLVal: 768 * time.Hour, MaxLeaseTTLVal: 87600 * time.Hour},
		})
		if err == nil {
			err = backend.Initialize(context.WithoutCancel(ctx), &logical.InitializationRequest{Storage: storage})
		}
		if err != nil {
			return refuse(http.StatusInternalServerError, err.Error())
		}
		s.engines[mount] = engine{backend, storage}
		return http.StatusOK, map[string]any{}
	}
	if name, ok := strings.CutPrefix(path, "sys/policies/acl/"); ok {
		// path "..." { capabilities = ["update"] }
		_, rest, _ := strings.Cut(text("policy"), `path "`)
		s.policies[name], _, _ = strings.Cut(rest, `"`)
		return http.StatusOK, map[string]any{}
	}
	switch path {
	case "sys/mounts":
		return http.StatusOK, map[string]any{}
	case "sys/seal":
		s.sealed = true
		return http.StatusOK, map[string]any{}
	case "auth/token/create":
		list, _ := body["policies"].([]any)
		if len(list) != 1 || list[0] == "" {
			return refuse(http.StatusBadRequest, "one policy is wanted")
		}
		token := rand.Text()
		s.tokens[token] = fmt.Sprint(list[0])
		return http.StatusOK, map[string]any{"auth": map[string]any{"client_token": token}}
	case "auth/token/revoke":
		delete(s.tokens, text("token"))
		return http.StatusOK, map[string]any{}
	}
	return 0, nil
}

func serverCertificate() (tls.Certificate, string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, "", err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "vault"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, "", err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), nil
}
