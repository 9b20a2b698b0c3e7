package behaviour

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// helloFor returns a ClientHello with a server name as it is spelled: package tls leaves out final
// dots, which other clients send.
func helloFor(name string) ([]byte, error) {
	const dot = "_"
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		defer client.Close()
		_ = tls.Client(client, &tls.Config{ServerName: strings.ReplaceAll(name, ".", dot), InsecureSkipVerify: true}).Handshake()
	}()
	_ = server.SetDeadline(time.Now().Add(5 * time.Second))
	head := make([]byte, 5)
	if _, err := io.ReadFull(server, head); err != nil {
		return nil, err
	}
	body := make([]byte, int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(server, body); err != nil {
		return nil, err
	}
	placeholder := []byte(strings.ReplaceAll(name, ".", dot))
	if bytes.Count(body, placeholder) != 1 {
		return nil, fmt.Errorf("the ClientHello does not have the name %q once", placeholder)
	}
	return append(head, bytes.Replace(body, placeholder, []byte(name), 1)...), nil
}

// greets reports whether a server that the server name leads to answers a ClientHello.
func greets(from dialer, address, name string) error {
	hello, err := helloFor(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := from.Dial(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Write(hello); err != nil {
		return err
	}
	// Some servers greet a name with a final dot with an alert.
	const alert, handshake = 21, 22
	answer := make([]byte, 1)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return err
	}
	if answer[0] != handshake && answer[0] != alert {
		return fmt.Errorf("the answer begins with %d", answer[0])
	}
	return nil
}

// greetsSpelled checks that a server name leads to its server in capitals and with a final dot, and
// that other spellings lead nowhere.
func (w *testMesh) greetsSpelled(t *testing.T, address, name string) {
	t.Helper()
	web := w.pod(t, "users/web")
	for _, spelled := range []string{name, strings.ToUpper(name), name + ".", strings.ToUpper(name[:3]) + name[3:] + "."} {
		w.eventually(t, func() error {
			if err := greets(web, address, spelled); err != nil {
				return fmt.Errorf("the server name %s: %w", spelled, err)
			}
			return nil
		})
	}
	for _, spelled := range []string{name + "..", name + ".x", "x" + name[1:] + "x"} {
		if err := greets(web, address, spelled); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the server name %s is answered (%v)", spelled, err)
		}
	}
}
