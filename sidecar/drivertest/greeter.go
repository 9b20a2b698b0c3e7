package drivertest

import (
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
)

// StartGreeter serves TCP on a port of 127.0.0.1 until the test ends: it writes the line
// hello to each connection, which it counts, and then whatever it reads.
func StartGreeter(t testing.TB, connections *atomic.Int32) (port uint16) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
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
			connections.Add(1)
			go func() {
				defer conn.Close()
				fmt.Fprintln(conn, "hello")
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return uint16(listener.Addr().(*net.TCPAddr).Port)
}
