// Package fleet simulates a fleet of proxies in a process of its own, for tests that measure
// what the server of a thousand proxies costs.
package fleet

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// Size is the number of proxies.
const Size = 1000

// variable is the server's address in the fleet's process, and caVariable the file of the
// CA's key and certificate.
const (
	variable   = "OUTRIGGER_TEST_FLEET"
	caVariable = "OUTRIGGER_TEST_FLEET_CA"
)

// Main is a package's TestMain. In the process that Start has started it calls run for each
// proxy, with its number. run calls connected when the server has answered, and returns only
// with an error, which ends the process.
func Main(m *testing.M, run func(address string, ca drivertest.TestAuthority, proxy int, connected func()) error) {
	address := os.Getenv(variable)
	if address == "" {
		os.Exit(m.Run())
	}
	pair, err := tls.LoadX509KeyPair(os.Getenv(caVariable), os.Getenv(caVariable))
	if err != nil {
		log.Fatal(err)
	}
	ca := drivertest.TestAuthority{Authority: &drivertest.Authority{Certificate: pair}, T: new(testing.T)}
	connecting := make(chan struct{}, 8)
	for i := range Size {
		connecting <- struct{}{}
		go func() { log.Fatal(run(address, ca, i, func() { <-connecting })) }()
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// Start starts a fleet, whose proxies connect to the address with certificates of the CA
// until the test ends. check fails the test if the fleet has ended.
func Start(t *testing.T, address string, ca *drivertest.Authority) (check func()) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.pem")
	key, err := pki.EncodeKey(ca.PrivateKey)
	err = errors.Join(err, os.WriteFile(file, append(key, ca.PEM()...), 0o600))
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), variable+"="+address, caVariable+"="+file)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	input, pipeErr := cmd.StdinPipe()
	if err := errors.Join(err, pipeErr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		input.Close()
		<-gone
	})
	return func() {
		select {
		case <-gone:
			t.Fatalf("the fleet has ended: %s", output.String())
		default:
		}
	}
}

// CPU returns the CPU time that this process has used.
func CPU() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// Memory returns the size of live objects and stacks in bytes.
func Memory() uint64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
