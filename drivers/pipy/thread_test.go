package pipy

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// TestOneThread holds that Pipy has one thread, whatever is asked for, and that it is
// said.
func TestOneThread(t *testing.T) {
	for _, threads := range []int32{0, 1, 4} {
		inj := &driver.InjectorContext{
			Pod:     &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}}}},
			PodOS:   "linux",
			Sidecar: driver.Sidecar{Image: "pipy", InitImage: "init", Concurrency: threads},
		}
		if err := (Driver{}).Patch(inj); err != nil {
			t.Fatal(err)
		}
		var spec agentspec.Spec
		for _, e := range inj.Pod.Spec.Containers[1].Env {
			if e.Name == agentspec.EnvSpec {
				if err := json.Unmarshal([]byte(e.Value), &spec); err != nil {
					t.Fatal(err)
				}
			}
		}
		command := strings.Join(spec.Command, " ")
		if command == "" || strings.Contains(command, "threads") || strings.Contains(command, "reuse-port") || strings.Contains(command, agentspec.EnvConcurrency) {
			t.Errorf("for %d threads the command is %q, want one thread, which is Pipy's default", threads, command)
		}
		if err := sidecar.CheckConcurrency(name, threads); (err != nil) != (threads > 1) {
			t.Errorf("for %d threads it says %v", threads, err)
		}
	}
}

// TestWhyOneThread holds what keeps Pipy from having more threads. Once it fails, there
// is a Pipy that may have them.
func TestWhyOneThread(t *testing.T) {
	program, err := Driver{}.FindProxy()
	if errors.Is(err, driver.ErrNoProxy) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	if runtime.NumCPU() < 2 {
		t.Skip("Pipy refuses more threads than there are processors")
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	script := filepath.Join(t.TempDir(), "main.js")
	if err := os.WriteFile(script, []byte(fmt.Sprintf(`
var asked = 0
pipy.listen(%q, $=>$.serveHTTP(() => new Message(`+"`${__thread.id} ${++asked}`"+`)))
`, address)), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func(flags ...string) *bufio.Scanner {
		cmd := exec.Command(program, append(flags, "--threads=2", "--no-reload", "--no-graph", script)...)
		output, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// It may hang, and does not say the next thing then.
		limit := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
		t.Cleanup(func() {
			limit.Stop()
			cmd.Process.Kill()
			cmd.Wait()
		})
		return bufio.NewScanner(output)
	}
	says := func(lines *bufio.Scanner, text string, times int) bool {
		for lines.Scan() {
			if strings.Contains(lines.Text(), text) {
				if times--; times == 0 {
					return true
				}
			}
		}
		return false
	}
	t.Run("the second thread cannot listen", func(t *testing.T) {
		lines := start()
		if !says(lines, "bind: Address already in use", 1) || !says(lines, "Stopped listening", 1) {
			t.Error("two threads listen at one port without more ado")
		}
	})
	t.Run("threads share nothing", func(t *testing.T) {
		if !says(start("--reuse-port"), "Listening on", 2) {
			t.Fatal("not both threads listen")
		}
		client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		const requests = 100
		highest := map[string]string{}
		for range requests {
			response, err := client.Get("http://" + address)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(response.Body)
			response.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			thread, count, _ := strings.Cut(string(body), " ")
			highest[thread] = count
		}
		if len(highest) != 2 {
			t.Fatalf("threads that have answered, and how often: %v, want two", highest)
		}
		for thread, count := range highest {
			if count == fmt.Sprint(requests) {
				t.Errorf("thread %s counts %s of %d requests: a variable is both threads'", thread, count, requests)
			}
		}
	})
}
