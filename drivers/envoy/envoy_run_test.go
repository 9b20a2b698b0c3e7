package envoy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// runningEnvoy is an Envoy whose listener accepts PROXY headers: redirecting
// connections needs privileges that a test may not have.
type runningEnvoy struct {
	address string
	// output is the file with its standard output, and records that with its records.
	output, records string
}

// startEnvoy runs an Envoy with the listener "outbound" or "inbound" of the View's
// configuration, and the identity in the directory.
func startEnvoy(t *testing.T, view *mesh.View, dir, listener string) runningEnvoy {
	t.Helper()
	program, err := Driver{}.FindProxy()
	if errors.Is(err, driver.ErrNoProxy) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	static, err := staticForm(NewTranslator().Config(view))
	if err != nil {
		t.Fatal(err)
	}
	static = bytes.ReplaceAll(static, []byte(driver.IdentityDir), []byte(dir))
	var form struct {
		Admin     tree `json:"admin"`
		Runtime   tree `json:"layered_runtime"`
		Resources struct {
			Listeners []tree `json:"listeners"`
			Clusters  []tree `json:"clusters"`
			Secrets   []tree `json:"secrets"`
		} `json:"static_resources"`
	}
	if err := json.Unmarshal(static, &form); err != nil {
		t.Fatal(err)
	}
	anyPort := tree{"socket_address": tree{"address": "127.0.0.1", "port_value": 0}}
	adminFile := filepath.Join(dir, "admin")
	form.Admin = tree{"address": anyPort}
	form.Runtime = tree{"layers": []tree{{"name": "static", "static_layer": tree{recordsKey: 100, openKey: 100, "re2.max_program_size.error_level": 32768}}}}
	var listeners []tree
	for _, l := range form.Resources.Listeners {
		switch l["name"] {
		case listener:
			filters, isRedirected := l["listener_filters"].([]any)
			if !isRedirected {
				// The port of a gateway.
				break
			}
			l["address"] = anyPort
			delete(l, "additional_addresses")
			filters[0] = tree{"name": "proxy_protocol", "typed_config": tree{
				"@type": "type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol",
			}}
		case "outbound", "inbound":
			continue
		}
		listeners = append(listeners, l)
	}
	form.Resources.Listeners = listeners
	content, err := json.Marshal(form)
	if err != nil {
		t.Fatal(err)
	}
	// A pod has the folder of the records, but the machine of the test has not.
	records := filepath.Join(dir, "records")
	content = bytes.ReplaceAll(content, []byte(recordsFile), []byte(records))
	file := filepath.Join(dir, "envoy.json")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, "--config-path", file, "--disable-hot-restart", "--concurrency", "1",
		"--log-level", "warning", "--file-flush-interval-msec", "100", "--admin-address-path", adminFile)
	output, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = output, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return runningEnvoy{address: listeningAddress(t, adminFile, listener, ended), output: output.Name(), records: records}
}

// listeningAddress waits until Envoy is ready and returns the listener's address.
func listeningAddress(t *testing.T, adminFile, listener string, ended <-chan error) string {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		if admin, err := os.ReadFile(adminFile); err == nil {
			if status, _ := fetch("http://" + string(admin) + "/ready"); status == 200 {
				_, list := fetch("http://" + string(admin) + "/listeners")
				for line := range strings.Lines(list) {
					address, ok := strings.CutPrefix(strings.TrimSpace(line), listener+"::")
					if !ok {
						continue
					}
					// Envoy reports ready before its workers listen.
					if conn, err := net.Dial("tcp", address); err == nil {
						conn.Close()
						return address
					}
				}
			}
		}
		select {
		case err := <-ended:
			t.Fatalf("Envoy ended: %v", err)
		case <-deadline:
			t.Fatal("Envoy is not ready after half a minute")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func fetch(url string) (int, string) {
	response, err := http.Get(url)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(body)
}

// dial connects like an application that connects to the destination.
func (e runningEnvoy) dial(ctx context.Context, destination string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", e.address)
	if err != nil {
		return nil, err
	}
	to := netip.MustParseAddrPort(destination)
	family, from := "TCP4", "10.244.0.5"
	if to.Addr().Is6() {
		family, from = "TCP6", "fd00::5"
	}
	if _, err := fmt.Fprintf(conn, "PROXY %s %s %s 12345 %d\r\n", family, from, to.Addr(), to.Port()); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// dialer returns a function that dials the destination, whatever it is asked for.
func (e runningEnvoy) dialer(destination string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) { return e.dial(ctx, destination) }
}

// get requests the URL over a connection to the destination. The status is 0 if the
// connection is closed. The body is returned only for status 200.
func (e runningEnvoy) get(t *testing.T, destination, url string) (int, string) {
	t.Helper()
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DialContext: e.dialer(destination), DisableKeepAlives: true,
		// The test checks where connections go, not certificates.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	response, err := client.Get(url)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != 200 {
		return response.StatusCode, ""
	}
	return response.StatusCode, string(body)
}

// read returns what a silent client receives.
func (e runningEnvoy) read(t *testing.T, destination string) string {
	t.Helper()
	conn, err := e.dial(t.Context(), destination)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		t.Errorf("reading from %s: %v", destination, err)
	}
	return line
}
