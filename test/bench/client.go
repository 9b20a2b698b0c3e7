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

// injectPath is that of reviews, and echoPath that of the same answers without any work.
const (
	injectPath = "/inject?timeout=10s"
	echoPath   = "/echo"
)

// client sends one request at a time over a persistent connection, and returns the
// body of the answer, which is valid until the next request.
type client interface {
	post(path string, body []byte) ([]byte, error)
	get(path string) ([]byte, error)
}

// load sends reviews to a path from several clients for the duration, prints the results, and
// returns the number of reviews in a second.
func load(name, path string, s *server, duration time.Duration, clients int, dial func(*server) (client, error)) (float64, error) {
	list := make([]client, clients)
	for i := range list {
		var err error
		if list[i], err = dial(s); err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
	}
	bodies := reviews()
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
					if err := ask(c, path, bodies[n%len(bodies)]); err != nil {
						return err
					}
					times[i] = append(times[i], time.Since(start))
				}
			})
		}
		err := group.Wait()
		return slices.Concat(times...), err
	}
	if _, err := run(duration / 5); err != nil {
		return 0, fmt.Errorf("%s: warming up: %w", name, err)
	}
	serverBefore, err := serverCPU(list[0])
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	clientBefore, err := cpuTime()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	times, err := run(duration)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	took := time.Since(start)
	clientAfter, err := cpuTime()
	if err != nil {
		return 0, err
	}
	serverAfter, err := serverCPU(list[0])
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	slices.Sort(times)
	n := time.Duration(len(times))
	fmt.Printf("%-14s %7.0f reviews/s  p50 %8v  p99 %8v  CPU per review: server %v, client %v  (%d reviews, %d clients)\n",
		name, float64(n)/took.Seconds(), times[n/2].Round(time.Microsecond), times[n*99/100].Round(time.Microsecond),
		((serverAfter - serverBefore) / n).Round(time.Microsecond), ((clientAfter - clientBefore) / n).Round(time.Microsecond), n, clients)
	return float64(n) / took.Seconds(), nil
}

// reviews returns bodies, which are generated before they are measured.
func reviews() [][]byte {
	bodies := make([][]byte, 100)
	for i := range bodies {
		bodies[i] = review(i)
	}
	return bodies
}

// ask sends a review and checks that the answer has a patch.
func ask(c client, path string, body []byte) error {
	answer, err := c.post(path, body)
	if err != nil {
		return err
	}
	if len(answer) < 1000 || !bytes.Contains(answer[:200], []byte(`"allowed":true`)) {
		return fmt.Errorf("the answer is %s", answer)
	}
	return nil
}

// compare measures reviews and echoes in turn, and prints the ratio of their rates.
func compare(name string, s *server, duration time.Duration, clients int, dial func(*server) (client, error)) error {
	var reviewed, echoed float64
	const turns = 3
	for range turns {
		echoes, err := load(name+" echo", echoPath, s, duration/turns, clients, dial)
		if err != nil {
			return err
		}
		answers, err := load(name, injectPath, s, duration/turns, clients, dial)
		if err != nil {
			return err
		}
		reviewed, echoed = reviewed+answers, echoed+echoes
	}
	fmt.Printf("%-14s %7.2f reviews for each echo\n", name, reviewed/echoed)
	return nil
}

// apart measures reviews that each have a connection of their own, in turn with such echoes.
func apart(s *server, n int) error {
	bodies := reviews()
	var echoed, reviewed []time.Duration
	for i := range n {
		for _, of := range []struct {
			path  string
			times *[]time.Duration
		}{{echoPath, &echoed}, {injectPath, &reviewed}} {
			took, err := alone(s, of.path, bodies[i%len(bodies)])
			if err != nil {
				return err
			}
			*of.times = append(*of.times, took)
		}
	}
	printTimes("own connection, echo", echoed)
	printTimes("own connection", reviewed)
	return nil
}

// alone returns how long a review over a new connection takes.
func alone(s *server, path string, body []byte) (time.Duration, error) {
	start := time.Now()
	c, err := dialHTTP1(s)
	if err != nil {
		return 0, err
	}
	if err := ask(c, path, body); err != nil {
		return 0, err
	}
	took := time.Since(start)
	return took, c.(*http1).connection.Close()
}

// pace measures reviews at a fixed rate over one connection.
func pace(s *server, every, duration time.Duration) error {
	c, err := dialHTTP2(s)
	if err != nil {
		return err
	}
	bodies := reviews()
	var times []time.Duration
	tick := time.NewTicker(every)
	defer tick.Stop()
	for begun := time.Now(); time.Since(begun) < duration; <-tick.C {
		start := time.Now()
		if err := ask(c, injectPath, bodies[len(times)%len(bodies)]); err != nil {
			return err
		}
		times = append(times, time.Since(start))
	}
	printTimes(fmt.Sprintf("one in %s", every), times)
	return nil
}

func printTimes(name string, times []time.Duration) {
	slices.Sort(times)
	n := len(times)
	fmt.Printf("%-14s p50 %8v  p99 %8v  longest %8v  (%d reviews)\n", name, times[n/2].Round(time.Microsecond),
		times[n*99/100].Round(time.Microsecond), times[n-1].Round(time.Microsecond), n)
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

func (c *http1) post(path string, body []byte) ([]byte, error) {
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

func (c *http2) post(path string, body []byte) ([]byte, error) {
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
