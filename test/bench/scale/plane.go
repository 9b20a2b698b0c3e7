package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/test/bench/process"
)

// plane is a control plane that is measured: a process, and what its clients must know.
type plane struct {
	name, program, dir string
	args, env          []string
	// ready answers with 200 when the process serves, metrics has the metrics of Go's runtime,
	// and pprof is where the pages of net/http/pprof are.
	ready, metrics, pprof string
	// trust is the ConfigMap with the trust bundle in each namespace.
	trust string
	// audience is that of the tokens of the signing service.
	audience string
	// setup has the addresses, but for protocolFiles.
	setup Setup
	// files is the address of the file repository.
	files string

	cmd   *exec.Cmd
	log   *os.File
	ended chan error
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// start starts the process and waits until it is ready.
func (p *plane) start(ctx context.Context) (time.Duration, error) {
	var err error
	if p.log, err = os.OpenFile(filepath.Join(p.dir, p.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return 0, err
	}
	began := time.Now()
	p.cmd = exec.Command(p.program, p.args...)
	p.cmd.Dir, p.cmd.Env = p.dir, append(os.Environ(), p.env...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		p.cmd = nil
		return 0, errors.Join(err, p.log.Close())
	}
	p.ended = make(chan error, 1)
	go func() { p.ended <- p.cmd.Wait() }()
	limit := time.After(5 * time.Minute)
	for {
		response, err := http.Get(p.ready)
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return time.Since(began), nil
			}
		}
		select {
		case err := <-p.ended:
			p.ended <- err
			return 0, fmt.Errorf("%s has ended: %v\n%s", p.name, err, p.lastLines())
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-limit:
			return 0, fmt.Errorf("%s does not become ready\n%s", p.name, p.lastLines())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// lastLines returns the end of the log.
func (p *plane) lastLines() string {
	text, _ := os.ReadFile(p.log.Name())
	return string(text[max(len(text)-4<<10, 0):])
}

// stop ends the process as Kubernetes does.
func (p *plane) stop() error {
	if p.cmd == nil {
		return nil
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	p.cmd = nil
	return p.log.Close()
}

// cpu returns the CPU time that the process has used.
func (p *plane) cpu() (time.Duration, error) { return process.CPU(p.cmd.Process.Pid) }

// quiet waits until the process has nothing left to do, and long enough that the next change
// is one after a quiet time.
func (p *plane) quiet(ctx context.Context) error {
	const step = 600 * time.Millisecond
	for range 200 {
		before, err := p.cpu()
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(step):
		}
		after, err := p.cpu()
		if err != nil || after-before < step/50 {
			return err
		}
	}
	return fmt.Errorf("%s does not become idle", p.name)
}

// Memory is the memory of a control plane in bytes.
type Memory struct {
	process.Memory
	// Heap are the spans of Go's heap that are in use, with objects that are not freed yet.
	Heap int64
}

// memory returns the process's memory.
func (p *plane) memory() (Memory, error) {
	used, err := process.MemoryOf(p.cmd.Process.Pid)
	if err != nil {
		return Memory{}, err
	}
	heap, err := p.metric("go_memstats_heap_inuse_bytes")
	return Memory{used, heap}, err
}

// live returns the bytes of the heap that are in use after a garbage collection, and of the
// stacks.
func (p *plane) live() (int64, error) {
	// One collection frees what the former one has found.
	for range 2 {
		response, err := http.Get(p.pprof + "heap?gc=1")
		if err != nil {
			return 0, err
		}
		_, err = io.Copy(io.Discard, response.Body)
		if err = errors.Join(err, response.Body.Close()); err != nil {
			return 0, err
		}
		if response.StatusCode != http.StatusOK {
			return 0, fmt.Errorf("%s: %s", p.pprof, response.Status)
		}
	}
	heap, err := p.metric("go_memstats_heap_alloc_bytes")
	if err != nil {
		return 0, err
	}
	stacks, err := p.metric("go_memstats_stack_inuse_bytes")
	return heap + stacks, err
}

// metric returns a metric without labels.
func (p *plane) metric(name string) (int64, error) {
	response, err := http.Get(p.metrics)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			n, err := strconv.ParseFloat(value, 64)
			return int64(n), err
		}
	}
	return 0, errors.Join(lines.Err(), fmt.Errorf("%s has no %s", p.metrics, name))
}

// roots waits for the mesh's trust bundle.
func (p *plane) roots(ctx context.Context, c client.Client) ([]byte, error) {
	limit := time.After(time.Minute)
	for {
		var found corev1.ConfigMap
		err := c.Get(ctx, client.ObjectKey{Namespace: namespaceOf(0), Name: p.trust}, &found)
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		for _, text := range found.Data {
			if strings.Contains(text, "BEGIN CERTIFICATE") {
				return []byte(text), nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-limit:
			return nil, fmt.Errorf("there is no ConfigMap %s/%s with the trust bundle", namespaceOf(0), p.trust)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
