package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// mirrored is a client of the file repository, which polls as the agent does: a request names
// the version in use, which acknowledges it, and waits for another one. It does not decode
// the files, for the reason that is given at frame.
type mirrored struct {
	*sidecar
	// version is the one in use; empty if there is none.
	version string
	buffer  [16 << 10]byte
}

// connect polls over one connection until it ends.
func (m *mirrored) connect(ctx context.Context) error {
	transport := &http.Transport{
		DialContext:     func(ctx context.Context, _, address string) (net.Conn, error) { return m.dial(ctx, address) },
		TLSClientConfig: m.tls, MaxConnsPerHost: 1, WriteBufferSize: 1 << 10,
	}
	defer transport.CloseIdleConnections()
	// The first request does not wait, because a server that has nothing new for a client that
	// comes back would not answer.
	for wait := 0; ; wait = int(mirror.DefaultWait.Seconds()) {
		if err := m.poll(ctx, transport, wait); err != nil {
			return err
		}
	}
}

// poll asks for another version than the one in use.
func (m *mirrored) poll(ctx context.Context, transport http.RoundTripper, wait int) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+m.fleet.Config+"/repo/"+m.pod.UID+"/", nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", mirror.ChangeType)
	if m.version != "" {
		request.Header.Set("If-None-Match", strconv.Quote(m.version))
	}
	if wait > 0 {
		request.Header.Set("Prefer", "wait="+strconv.Itoa(wait))
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusNotModified:
		m.nowServed()
		return nil
	case http.StatusOK:
	default:
		text, _ := io.ReadAll(io.LimitReader(response.Body, 512))
		return fmt.Errorf("the repository answers %s: %s", response.Status, bytes.TrimSpace(text))
	}
	var markers [][]byte
	if e := m.fleet.expected.Load(); e != nil {
		markers = e.markers
	}
	change, err := scan(response.Body, m.buffer[:], markers)
	if err != nil {
		return err
	}
	resent := 0
	if wait == 0 && m.version != "" {
		resent = change.files
	}
	m.version = change.version
	m.fleet.received(change.bytes, change.files, resent)
	// The next request, which is made at once, acknowledges the version.
	m.nowServed()
	m.expect(change.found)
	return nil
}

// scanned is what a client notes of a change.
type scanned struct {
	version string
	// files are the new and changed files.
	files, bytes int
	// found is a marker that the change contains; nil if it contains none.
	found []byte
}

// beginOfFile comes before each file, and not within one, where quotes are escaped.
var beginOfFile = []byte(`{"name":"`)

// scan reads a change as JSON, whose version comes first.
func scan(body io.Reader, buffer []byte, markers [][]byte) (scanned, error) {
	var s scanned
	var head []byte
	files := finder{pattern: beginOfFile}
	finders := make([]finder, len(markers))
	for i, marker := range markers {
		finders[i].pattern = marker
	}
	for {
		n, err := body.Read(buffer)
		part := buffer[:n]
		s.bytes += n
		head = append(head, part[:min(n, cap(buffer)-len(head))]...)
		files.read(part)
		for i := range finders {
			finders[i].read(part)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return s, err
		}
	}
	s.files = files.count
	for _, f := range finders {
		if f.count > 0 {
			s.found = f.pattern
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(head))
	for range 2 {
		if _, err := decoder.Token(); err != nil {
			return s, err
		}
	}
	return s, decoder.Decode(&s.version)
}

// finder counts how often a pattern occurs in a text that is read in parts.
type finder struct {
	pattern, tail []byte
	count         int
}

func (f *finder) read(part []byte) {
	text := append(f.tail, part...)
	f.count += bytes.Count(text, f.pattern)
	f.tail = append([]byte(nil), text[max(len(text)-len(f.pattern)+1, 0):]...)
}
