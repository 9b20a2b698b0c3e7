package behaviour

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

// testUpgrade upgrades the proxies of a client and of its server, while requests use kept and
// new connections and TCP connections are open.
func testUpgrade(t *testing.T, w *testMesh) {
	w.get(t, "users/web", cartV1, isFrom("cart-v1"))
	web := w.pod(t, "users/web")
	for _, upgraded := range []struct{ pod, class string }{{"shop/cart-v1", w.Server}, {"users/web", w.Client}} {
		t.Run(upgraded.pod, func(t *testing.T) {
			kept := w.startLoad(web, cartV1, 4)
			new := &load{pods: map[string]int{}, stop: make(chan struct{})}
			for range 3 {
				new.work(w, &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: web.Dial, DisableKeepAlives: true}}, cartV1, 2*time.Millisecond)
			}
			talk := startTalk(t, web)
			kept.more(t, 50)
			container, err := w.Upgrade(upgraded.pod, w.later[upgraded.class])
			if err != nil {
				t.Fatal(err)
			}
			w.eventually(t, func() error { return w.hasTakenOver(container, upgraded.class) })
			// The former process is told to drain, and most kinds close their sockets then.
			time.Sleep(4 * time.Second)
			kept.more(t, 200)
			new.more(t, 200)
			talk.end(t)
			kept.end(t)
			new.end(t)
			w.get(t, "users/web", cartV1, isFrom("cart-v1"))
			if got, err := line(web, "cart-v1.shop:9000", "echo\n"); err != nil || got != "echo\n" {
				t.Errorf("after the upgrade the echo is %q, %v", got, err)
			}
			t.Logf("%d requests on kept connections, %d on new ones, %d lines on one TCP connection, %d TCP connections", kept.total, new.total, talk.lines, talk.connections)
		})
	}
}

// hasTakenOver returns an error unless the proxy in the container has taken over.
func (w *testMesh) hasTakenOver(container *lab.Container, class string) error {
	pids, err := container.PIDs(class)
	switch {
	case err != nil:
		return fmt.Errorf("%w; %s", err, container.Output())
	case len(pids) == 0:
		return errors.New("the new proxy does not run")
	case !strings.Contains(container.Output(), "has taken over"):
		return fmt.Errorf("the new proxy has not taken over: %s", container.Output())
	}
	return nil
}

// talk is a TCP connection that stays open, and others that are opened meanwhile.
type talk struct {
	lines, connections int
	stop, done         chan struct{}
	err                error
}

func startTalk(t *testing.T, from dialer) *talk {
	t.Helper()
	conn, err := from.Dial(t.Context(), "tcp", "cart-v1.shop:9000")
	if err != nil {
		t.Fatal(err)
	}
	k := &talk{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(k.done)
		defer conn.Close()
		answers := bufio.NewReader(conn)
		for {
			select {
			case <-k.stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			k.lines++
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			said := fmt.Sprintf("line %d\n", k.lines)
			if _, err := io.WriteString(conn, said); err != nil {
				k.err = fmt.Errorf("on the open connection, line %d: %w", k.lines, err)
				return
			}
			if heard, err := answers.ReadString('\n'); err != nil || heard != said {
				k.err = fmt.Errorf("on the open connection the echo of line %d is %q, %w", k.lines, heard, err)
				return
			}
			k.connections++
			if got, err := line(from, "cart-v1.shop:9000", "echo\n"); err != nil || got != "echo\n" {
				k.err = fmt.Errorf("on new connection %d the echo is %q, %w", k.connections, got, err)
				return
			}
		}
	}()
	return k
}

// end closes the connection and fails the test if it has failed.
func (k *talk) end(t *testing.T) {
	t.Helper()
	close(k.stop)
	<-k.done
	if k.err != nil {
		t.Error(k.err)
	}
}
