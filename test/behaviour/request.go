package behaviour

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// dialer is a pod or the node.
type dialer interface {
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}

// reply is a client's response.
type reply struct {
	Status int
	Body   string
	Header http.Header
	answer
}

// request is a client's request.
type request struct {
	method, url string
	header      http.Header
	body        string
	// host is the Host header, if it differs from the URL's.
	host string
	// timeout is the client's timeout; 0 means 10 s.
	timeout time.Duration
}

// send sends a request from a pod over a new connection. It does not follow redirects.
func (w *testMesh) send(from dialer, r request) (reply, error) {
	client := &http.Client{
		Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: from.Dial, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	defer client.CloseIdleConnections()
	return w.sendBy(client, r)
}

func (w *testMesh) sendBy(client *http.Client, r request) (reply, error) {
	if r.method == "" {
		r.method = http.MethodGet
	}
	ctx := context.Background()
	if r.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.timeout)
		defer cancel()
	}
	httpRequest, err := http.NewRequestWithContext(ctx, r.method, r.url, strings.NewReader(r.body))
	if err != nil {
		return reply{}, err
	}
	if r.header != nil {
		httpRequest.Header = r.header
	}
	httpRequest.Host = r.host
	response, err := client.Do(httpRequest)
	if err != nil {
		return reply{}, err
	}
	return readReply(response)
}

func readReply(response *http.Response) (reply, error) {
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return reply{}, err
	}
	out := reply{Status: response.StatusCode, Body: string(body), Header: response.Header}
	if response.StatusCode == http.StatusOK {
		_ = json.Unmarshal(body, &out.answer)
	}
	return out, nil
}

// get repeats the request until the reply is as wanted, and otherwise fails the test
// with the last reply.
func (w *testMesh) get(t *testing.T, from, url string, want func(reply) error) reply {
	t.Helper()
	return w.ask(t, from, request{url: url}, want)
}

func (w *testMesh) ask(t *testing.T, from string, r request, want func(reply) error) reply {
	t.Helper()
	return w.repeat(t, r.url+" from "+from, want, func() (reply, error) { return w.send(w.pod(t, from), r) })
}

// repeat sends a request, of which what is the description, until the reply is as wanted,
// and otherwise fails the test with the last reply.
func (w *testMesh) repeat(t *testing.T, what string, want func(reply) error, send func() (reply, error)) reply {
	t.Helper()
	var last reply
	w.eventually(t, func() error {
		var err error
		if last, err = send(); err == nil {
			err = want(last)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
	return last
}

// inTurn waits until that many consecutive requests of a pod get the wanted reply.
func (w *testMesh) inTurn(t *testing.T, times int, from string, r request, want func(reply) error) {
	t.Helper()
	w.repeat(t, r.url+" from "+from, want, func() (last reply, err error) {
		for range times {
			if last, err = w.send(w.pod(t, from), r); err != nil || want(last) != nil {
				break
			}
		}
		return last, err
	})
}

// afterFailures repeats a request, with another key each time, until its reply is as wanted.
// failure tells the application how to treat the first requests with a key.
func (w *testMesh) afterFailures(t *testing.T, r request, failure string, want func(reply) error) {
	t.Helper()
	url := r.url
	w.repeat(t, url+" with "+failure, want, func() (reply, error) {
		w.keys++
		r.url = fmt.Sprintf("%s?fail=%d&%s", url, w.keys, failure)
		return w.send(w.pod(t, "users/web"), r)
	})
}

// denies waits until a pod's requests fail. What the previous row allowed may apply a
// moment longer.
func (w *testMesh) denies(t *testing.T, from, url string) {
	t.Helper()
	w.eventually(t, func() error {
		if r, err := w.send(w.pod(t, from), request{url: url}); err == nil && r.Status < 400 {
			return fmt.Errorf("%s gets %d from %s", from, r.Status, url)
		}
		return nil
	})
}

// isStatus checks for a status.
func isStatus(want int) func(reply) error {
	return func(r reply) error {
		if r.Status != want {
			return fmt.Errorf("the status is %d, want %d: %.200s", r.Status, want, r.Body)
		}
		return nil
	}
}

// isFrom checks for an answer of the pod.
func isFrom(pod string) func(reply) error {
	return func(r reply) error {
		if r.Status != http.StatusOK || r.Pod != pod {
			return fmt.Errorf("the answer is %d of pod %q, want 200 of %s: %.200s", r.Status, r.Pod, pod, r.Body)
		}
		return nil
	}
}

var ok = isStatus(http.StatusOK)
