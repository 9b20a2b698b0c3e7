package monitoring_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

// programs returns the folder of Prometheus and promtool, or skips the test if they are not
// compiled.
func programs(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: it needs Prometheus; run 'make test-all'")
	}
	out, err := exec.Command("../prometheus/build.sh", "--where").Output()
	if err != nil {
		t.Fatal(err)
	}
	folder := strings.TrimSpace(string(out))
	if _, err := os.Stat(filepath.Join(folder, "done")); err != nil {
		t.Skip("SKIPPED: Prometheus is not compiled; run 'make prometheus'")
	}
	return folder
}

// server is a Prometheus on the node of a lab.
type server struct {
	client *http.Client
	url    string
}

const prometheusAddress = "127.0.0.1:9990"

// startPrometheus starts a Prometheus that can reach the pods of the lab, and waits until it
// answers.
func startPrometheus(t *testing.T, at *lab.Lab, folder, config string) *server {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	process, err := at.StartProcess(t.Context(), lab.Process{Command: []string{
		filepath.Join(folder, "prometheus"), "--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + prometheusAddress,
	}})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{client: &http.Client{Transport: &http.Transport{DialContext: at.Node().Dial}}, url: "http://" + prometheusAddress}
	eventually(t, "Prometheus is ready", func() error {
		select {
		case <-process.Done():
			t.Fatalf("Prometheus ended:\n%s", process.Output())
		default:
		}
		_, err := s.get(t.Context(), "/-/ready", nil)
		return err
	})
	return s
}

func (s *server) get(ctx context.Context, path string, values url.Values) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path+"?"+values.Encode(), http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", path, response.Status, text)
	}
	return text, err
}

// query returns the value of an expression.
func (s *server) query(ctx context.Context, expr string) (model.Vector, error) {
	text, err := s.get(ctx, "/api/v1/query", url.Values{"query": {expr}})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct {
			ResultType string
			Result     model.Vector
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, fmt.Errorf("%s: %w in %s", expr, err, text)
	}
	return answer.Data.Result, nil
}

// hasData returns an error if an expression has no value that a graph can show.
func (s *server) hasData(ctx context.Context, expr string) error {
	result, err := s.query(ctx, expr)
	if err != nil {
		return err
	}
	for _, sample := range result {
		if !math.IsNaN(float64(sample.Value)) {
			return nil
		}
	}
	return fmt.Errorf("no data, of %d series, for %s", len(result), expr)
}

// target is what Kubernetes' service discovery finds.
type target struct {
	address string
	labels  map[string]string
}

// scrape is a part of the configuration of Prometheus.
func scrape(name, path, extra string, targets []target, relabel ...map[string]any) map[string]any {
	var statics []map[string]any
	for _, target := range targets {
		statics = append(statics, map[string]any{"targets": []string{target.address}, "labels": target.labels})
	}
	return map[string]any{
		"job_name": name, "metrics_path": path, "honor_labels": extra == honorLabels,
		"static_configs": statics, "relabel_configs": relabel,
	}
}

const honorLabels = "honorLabels"

// copyLabel is a relabelling that copies a label.
func copyLabel(from, to string) map[string]any {
	return map[string]any{"source_labels": []string{from}, "target_label": to}
}

// setLabel is a relabelling that sets a label.
func setLabel(to, value string) map[string]any {
	return map[string]any{"target_label": to, "replacement": value}
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(45 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// forward passes connections to an address of the node on to this machine's loopback, where the
// programs of the control plane listen.
func forward(t *testing.T, at *lab.Lab, port int, to string) string {
	t.Helper()
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	listener, err := at.Node().Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				other, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer other.Close()
				go func() {
					_, _ = io.Copy(other, conn)
					_ = other.(*net.TCPConn).CloseWrite()
				}()
				_, err = io.Copy(conn, other)
				if err != nil && !errors.Is(err, net.ErrClosed) {
					return
				}
			}()
		}
	}()
	return address
}
