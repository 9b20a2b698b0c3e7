package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

const path = "/inject?timeout=10s"

// client sends one request at a time over a persistent connection, and returns the
// body of the answer, which is valid until the next request.
type client interface {
	post(body []byte) ([]byte, error)
	get(path string) ([]byte, error)
}

// load sends reviews from several clients for the duration and prints the results.
func load(name string, s *server, duration time.Duration, clients int, dial func(*server) (client, error)) error {
	list := make([]client, clients)
	for i := range list {
		var err error
		if list[i], err = dial(s); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	// The bodies are generated before the measurement.
	bodies := make([][]byte, 100)
	for i := range bodies {
		bodies[i] = review(i)
	}
	run := func(duration time.Duration) ([]time.Duration, error) {
		var group errgroup.Group
		times := make([][]time.Duration, clients)
		until := time.Now().Add(duration)
		for i, c := range list {
			group.Go(func() error {
				for n := i; ; n++ {
					start := time.Now()
					if start.After(until) {
						return nil
					}
					answer, err := c.post(bodies[n%len(bodies)])
					if err != nil {
						return err
					}
					if len(answer) < 1000 || !bytes.Contains(answer[:200], []byte(`"allowed":true`)) {
						return fmt.Errorf("the answer is %s", answer)
					}
					times[i] = append(times[i], time.Since(start))
				}
			})
		}
		err := group.Wait()
		return slices.Concat(times...), err
	}
	if _, err := run(duration / 5); err != nil {
		return fmt.Errorf("%s: warming up: %w", name, err)
	}
	serverBefore, err := serverCPU(list[0])
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	clientBefore, err := cpuTime()
	if err != nil {
		return err
	}
	start := time.Now()
	times, err := run(duration)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	took := time.Since(start)
	clientAfter, err := cpuTime()
	if err != nil {
		return err
	}
	serverAfter, err := serverCPU(list[0])
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	slices.Sort(times)
	n := time.Duration(len(times))
	fmt.Printf("%-9s %7.0f reviews/s  p50 %8v  p99 %8v  CPU per review: server %v, client %v  (%d reviews, %d clients)\n",
		name, float64(n)/took.Seconds(), times[n/2].Round(time.Microsecond), times[n*99/100].Round(time.Microsecond),
		((serverAfter - serverBefore) / n).Round(time.Microsecond), ((clientAfter - clientBefore) / n).Round(time.Microsecond), n, clients)
	return nil
}

func serverCPU(c client) (time.Duration, error) {
	answer, err := c.get(cpuPath)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(answer), 10, 64)
	return time.Duration(n), err
}

// http1 is a minimal HTTP/1.1 client: it shares the processors with the server that is
// measured.
type http1 struct {
	connection *tls.Conn
	reader     *bufio.Reader
	request    []byte
	answer     []byte
}

func dialHTTP1(s *server) (client, error) {
	connection, err := tls.Dial("tcp", s.address, s.tls("http/1.1"))
	if err != nil {
		return nil, err
	}
	return &http1{connection: connection, reader: bufio.NewReaderSize(connection, 16<<10)}, nil
}

func (c *http1) post(body []byte) ([]byte, error) {
	c.request = fmt.Appendf(c.request[:0], "POST %s HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, len(body))
	c.request = append(c.request, body...)
	return c.send()
}

func (c *http1) get(path string) ([]byte, error) {
	c.request = fmt.Appendf(c.request[:0], "GET %s HTTP/1.1\r\nHost: bench\r\n\r\n", path)
	return c.send()
}

func (c *http1) send() ([]byte, error) {
	if _, err := c.connection.Write(c.request); err != nil {
		return nil, err
	}
	status, err := c.reader.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(status, []byte("HTTP/1.1 200 ")) {
		return nil, fmt.Errorf("the status is %q", status)
	}
	length := -1
	for {
		line, err := c.reader.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		if len(line) <= 2 {
			break
		}
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(strings.TrimSpace(string(value))); err != nil {
				return nil, err
			}
		}
	}
	if length < 0 {
		return nil, errors.New("the answer has no length")
	}
	c.answer = slices.Grow(c.answer[:0], length)[:length]
	_, err = io.ReadFull(c.reader, c.answer)
	return c.answer, err
}

// http2 is an HTTP/2 client of the standard library, like an API server's.
type http2 struct {
	client *http.Client
	url    string
	answer bytes.Buffer
}

func dialHTTP2(s *server) (client, error) {
	transport := &http.Transport{TLSClientConfig: s.tls("h2"), ForceAttemptHTTP2: true}
	return &http2{client: &http.Client{Transport: transport}, url: "https://" + s.address}, nil
}

func (c *http2) post(body []byte) ([]byte, error) {
	r, err := http.NewRequest(http.MethodPost, c.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	return c.send(r)
}

func (c *http2) get(path string) ([]byte, error) {
	r, err := http.NewRequest(http.MethodGet, c.url+path, nil)
	if err != nil {
		return nil, err
	}
	return c.send(r)
}

func (c *http2) send(r *http.Request) ([]byte, error) {
	response, err := c.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	c.answer.Reset()
	if _, err := c.answer.ReadFrom(response.Body); err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK || response.ProtoMajor != 2 {
		return nil, fmt.Errorf("the answer is %s %s", response.Proto, response.Status)
	}
	return c.answer.Bytes(), nil
}
