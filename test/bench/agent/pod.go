package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/test/bench/process"
)

// build builds the agent as for the image. The tag omits gRPC's tracing pages, which saves
// 2 MiB.
func build(dir string) (string, error) {
	program := filepath.Join(dir, "outrigger-agent")
	cmd := exec.Command("go", "build", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", program, "github.com/outrigger-mesh/outrigger/cmd/outrigger-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the agent: %w\n%s", err, out)
	}
	return program, nil
}

// pod is a running agent, with a controller and an application in this process.
type pod struct {
	cmd        *exec.Cmd
	address    string
	controller *controller
	closers    []func()
}

func (p *pod) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	for _, close := range p.closers {
		close()
	}
}

func startPod(ctx context.Context, dir, program string) (*pod, error) {
	c, err := startController()
	if err != nil {
		return nil, err
	}
	p := &pod{controller: c, closers: []func(){c.stop}}
	web := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	tls := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	service := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(service, health.NewServer())
	go service.Serve(listener)
	p.closers = append(p.closers, web.Close, tls.Close, service.Stop)

	// Reserve a free port for the agent.
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p.address = free.Addr().String()
	free.Close()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	spec, err := agentspec.EnvValue(agentspec.Spec{
		Command: []string{self, "-sleep"},
		Secrets: &agentspec.Secrets{Socket: filepath.Join(dir, "sds.sock")},
		Probes: []agentspec.Probe{
			{Path: "/probe/0", Kind: agentspec.HTTP, Port: port(web.Listener), Host: "127.0.0.1", URL: "/", TimeoutSeconds: 5},
			{Path: "/probe/1", Kind: agentspec.HTTP, Scheme: "HTTPS", Port: port(tls.Listener), Host: "127.0.0.1", URL: "/", TimeoutSeconds: 5},
			{Path: "/probe/2", Kind: agentspec.TCP, Port: port(web.Listener), Host: "127.0.0.1", TimeoutSeconds: 5},
			{Path: "/probe/3", Kind: agentspec.GRPC, Port: port(listener), Host: "127.0.0.1", TimeoutSeconds: 5},
		},
	})
	if err != nil {
		return nil, err
	}
	for name, content := range map[string][]byte{"token": []byte("token"), "ca.crt": pki.Encode(c.root)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	p.cmd = exec.CommandContext(ctx, program, "run", "--listen", p.address, "--identity-address", c.address,
		"--identity-dir", filepath.Join(dir, "identity"), "--token-file", filepath.Join(dir, "token"), "--bundle-file", filepath.Join(dir, "ca.crt"))
	p.cmd.Env = append(os.Environ(), agentspec.EnvSpec+"="+spec, agentspec.EnvController+"="+host, agentspec.EnvTrustDomain+"=cluster.local",
		agentspec.EnvPodNamespace+"=bench", agentspec.EnvPodUID+"=1", agentspec.EnvServiceAccount+"=bench")
	var log bytes.Buffer
	p.cmd.Stderr = &log
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	for {
		if err := p.get(ctx, "/ready"); err == nil {
			return p, p.followSecrets(ctx, filepath.Join(dir, "sds.sock"))
		} else if ctx.Err() != nil {
			return nil, fmt.Errorf("the agent does not become ready: %w", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// followSecrets subscribes to the identity and the bundle like Envoy, each with a stream.
func (p *pod) followSecrets(ctx context.Context, socket string) error {
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	p.closers = append(p.closers, func() { conn.Close() })
	for _, name := range []string{agentspec.SecretIdentity, agentspec.SecretBundle} {
		stream, err := secretv3.NewSecretDiscoveryServiceClient(conn).StreamSecrets(ctx)
		if err != nil {
			return err
		}
		request := &discoveryv3.DiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", ResourceNames: []string{name}}
		if err := stream.Send(request); err != nil {
			return err
		}
		if _, err := stream.Recv(); err != nil {
			return err
		}
		go func() {
			for {
				if _, err := stream.Recv(); err != nil {
					return
				}
			}
		}()
	}
	return nil
}

func port(l net.Listener) int32 { return int32(l.Addr().(*net.TCPAddr).Port) }

func (p *pod) get(ctx context.Context, path string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+path, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, response.Status)
	}
	return nil
}

// certificates waits until the agent has requested n certificates.
func (p *pod) certificates(ctx context.Context, n int) error {
	for p.controller.issued.Load() < int64(n) {
		if ctx.Err() != nil {
			return fmt.Errorf("the agent has requested only %d certificates", p.controller.issued.Load())
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// probe sends every probe n times.
func (p *pod) probe(ctx context.Context, n int) error {
	for range n {
		for i := range 4 {
			if err := p.get(ctx, "/probe/"+strconv.Itoa(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// settled returns the agent's memory after a few idle seconds with readiness probes, as in
// a pod.
func (p *pod) settled(ctx context.Context) (process.Memory, error) {
	for range 3 {
		if err := p.get(ctx, "/ready"); err != nil {
			return process.Memory{}, err
		}
		time.Sleep(time.Second)
	}
	return process.MemoryOf(p.cmd.Process.Pid)
}
