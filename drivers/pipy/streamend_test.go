package pipy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// streamEnds are the ways in which a server of HTTP/2 leaves a call whose client still sends.
var streamEnds = map[string]func(conn net.Conn, framer *http2.Framer){
	"the connection is closed": func(conn net.Conn, _ *http2.Framer) {},
	"the stream is reset": func(_ net.Conn, framer *http2.Framer) {
		_ = framer.WriteRSTStream(1, http2.ErrCodeCancel)
		time.Sleep(10 * time.Second)
	},
	"a GOAWAY, then the stream is reset": func(_ net.Conn, framer *http2.Framer) {
		_ = framer.WriteGoAway(1, http2.ErrCodeNo, nil)
		time.Sleep(time.Second)
		_ = framer.WriteRSTStream(1, http2.ErrCodeCancel)
		time.Sleep(10 * time.Second)
	},
	"two GOAWAYs as of gRPC, then the connection is closed": func(_ net.Conn, framer *http2.Framer) {
		_ = framer.WriteGoAway(1<<31-1, http2.ErrCodeNo, []byte("graceful_stop"))
		_ = framer.WritePing(false, [8]byte{1})
		time.Sleep(200 * time.Millisecond)
		_ = framer.WriteGoAway(1, http2.ErrCodeNo, nil)
		time.Sleep(time.Second)
	},
	"trailers": func(_ net.Conn, framer *http2.Framer) {
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block("grpc-status", "14"), EndHeaders: true, EndStream: true})
		time.Sleep(10 * time.Second)
	},
	"a GOAWAY, trailers, then the connection is closed": func(_ net.Conn, framer *http2.Framer) {
		_ = framer.WriteGoAway(1, http2.ErrCodeNo, nil)
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block("grpc-status", "14"), EndHeaders: true, EndStream: true})
	},
	"a GOAWAY with an error": func(_ net.Conn, framer *http2.Framer) {
		_ = framer.WriteGoAway(1, http2.ErrCodeInternal, nil)
		time.Sleep(10 * time.Second)
	},
	"a GOAWAY that did not see the stream": func(_ net.Conn, framer *http2.Framer) {
		_ = framer.WriteGoAway(0, http2.ErrCodeNo, nil)
		time.Sleep(10 * time.Second)
	},
	"a GOAWAY in pieces, then the stream is reset": func(conn net.Conn, framer *http2.Framer) {
		for _, b := range []byte("\x00\x00\x0a\x07\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00ok") {
			_, _ = conn.Write([]byte{b})
			time.Sleep(time.Millisecond)
		}
		_ = framer.WriteRSTStream(1, http2.ErrCodeCancel)
		time.Sleep(10 * time.Second)
	},
	"a GOAWAY that is too short": raw("\x00\x00\x04\x07\x00\x00\x00\x00\x00\x00\x00\x00\x01"),
	"a GOAWAY of a stream":       raw("\x00\x00\x08\x07\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00"),
	"a frame that is too large":  raw("\xff\xff\xff\x00\x00\x00\x00\x00\x01"),
	"data of no stream":          raw("\x00\x00\x01\x00\x00\x00\x00\x00\x00x"),
	"settings of an odd length":  raw("\x00\x00\x05\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
	"a reset that is too short":  raw("\x00\x00\x03\x03\x00\x00\x00\x00\x01\x00\x00\x00"),
	"half of the last frame":     raw("\x00\x00\xff\x00\x01\x00\x00\x00\x01half"),
	"half a frame":               raw("\x00\x00\xff\x00\x00\x00\x00\x00\x01half"),
	"trailers and a reset without an error": func(_ net.Conn, framer *http2.Framer) {
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block("grpc-status", "14"), EndHeaders: true, EndStream: true})
		_ = framer.WriteRSTStream(1, http2.ErrCodeNo)
		time.Sleep(10 * time.Second)
	},
}

// raw sends bytes, waits for the client to notice, and closes the connection.
func raw(text string) func(net.Conn, *http2.Framer) {
	return func(conn net.Conn, _ *http2.Framer) {
		_, _ = conn.Write([]byte(text))
		time.Sleep(time.Second)
	}
}

// block encodes header fields, given as names and values in turn.
func block(fields ...string) []byte {
	var out bytes.Buffer
	encoder := hpack.NewEncoder(&out)
	for i := 0; i < len(fields); i += 2 {
		_ = encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return out.Bytes()
}

// leaveStreams serves connections: it answers the first call with a message, and leaves it after
// the client's second message.
func leaveStreams(l net.Listener, leave func(net.Conn, *http2.Framer)) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			_, _ = io.CopyN(io.Discard, conn, int64(len(http2.ClientPreface)))
			framer := http2.NewFramer(conn, conn)
			_ = framer.WriteSettings()
			for answered := false; ; {
				frame, err := framer.ReadFrame()
				if err != nil {
					return
				}
				switch frame := frame.(type) {
				case *http2.SettingsFrame:
					if !frame.IsAck() {
						_ = framer.WriteSettingsAck()
					}
				case *http2.HeadersFrame:
					if frame.StreamID == 1 {
						_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":status", "200", "content-type", "application/grpc"), EndHeaders: true})
					}
				case *http2.DataFrame:
					if frame.StreamID != 1 || frame.Length == 0 {
						continue
					}
					_ = framer.WriteData(1, false, []byte("\x00\x00\x00\x00\x02ok"))
					if answered {
						leave(conn, framer)
						return
					}
					answered = true
				}
			}
		}()
	}
}

// endsSoon makes a call that sends a message five times a second, and reports how long after
// the second message its answer ends.
func endsSoon(t *testing.T, client *http.Client, url string) time.Duration {
	t.Helper()
	reader, writer := io.Pipe()
	defer reader.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, reader)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("TE", "trailers")
	go func() {
		for ctx.Err() == nil {
			if _, err := writer.Write([]byte("\x00\x00\x00\x00\x02hi")); err != nil {
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
	}()
	response, err := client.Do(request)
	if err != nil {
		t.Errorf("the call has no answer: %v", err)
		return 0
	}
	defer response.Body.Close()
	began := time.Now()
	_, err = io.ReadAll(response.Body)
	if errors.Is(err, context.DeadlineExceeded) {
		t.Error("the answer does not end")
	}
	if status := response.Trailer.Get("Grpc-Status"); err == nil && status != "14" {
		t.Errorf("a call that the server left ends with the status %q", status)
	}
	return time.Since(began)
}

// TestServerLeavesStream has a server leave a gRPC stream whose client still sends, behind the
// client's sidecar and behind the server's. The client must be told, and soon.
func TestServerLeavesStream(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	names := map[string]string{}
	i := 0
	for name, leave := range streamEnds {
		i++
		l, err := s.lab.Node().Listen(t.Context(), "tcp", "198.18.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go leaveStreams(tls.NewListener(l, &tls.Config{
			Certificates: []tls.Certificate{s.root.issue(t, storeName)}, ClientCAs: s.root.Pool(),
			ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{"h2"},
		}), leave)
		address := fmt.Sprintf("10.96.0.%d", i)
		w.service("s"+address, 80, mesh.GRPC, address, at(l.Addr().(*net.TCPAddr).AddrPort(), storeName))
		names[name] = address
	}
	s.apply(t, w.view())
	for name, address := range names {
		t.Run(name, func(t *testing.T) {
			transport := &http.Transport{DialContext: s.Dial, Protocols: new(http.Protocols), DisableKeepAlives: true}
			transport.Protocols.SetUnencryptedHTTP2(true)
			if took := endsSoon(t, &http.Client{Transport: transport}, "http://"+address+"/a.B/Chat"); took > 5*time.Second {
				t.Errorf("the client is told after %s", took)
			}
		})
	}
}

// TestApplicationLeavesStream is the same for the server's side.
func TestApplicationLeavesStream(t *testing.T) {
	var ports []mesh.InboundPort
	for i := range len(streamEnds) {
		ports = append(ports, mesh.InboundPort{Port: uint16(9300 + i), Protocol: mesh.GRPC, Access: anyone})
	}
	w := startWorkload(t, inboundView(&mesh.Inbound{TLS: mesh.Strict, Ports: ports}))
	port := 9300
	for name, leave := range streamEnds {
		at := port
		port++
		go leaveStreams(w.listen(t, at), leave)
		t.Run(name, func(t *testing.T) {
			transport := &http.Transport{
				DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return w.call(ctx, at) },
				TLSClientConfig: w.as(t, buyer), DisableKeepAlives: true, Protocols: new(http.Protocols),
			}
			transport.Protocols.SetHTTP2(true)
			if took := endsSoon(t, &http.Client{Transport: transport}, "https://a/a.B/Chat"); took > 5*time.Second {
				t.Errorf("the client is told after %s", took)
			}
		})
	}
}
