package behaviour

import (
	"fmt"
	"strings"
)

// hiddenRequest is a request that the client users/web may not send. Odd messages contain it
// where one parser sees a body and another one the next request.
const hiddenRequest = "GET /hidden HTTP/1.1\r\nHost: cart-v1.shop\r\n\r\n"

// odd is a message that parsers read in different ways, or refuse.
type odd struct{ name, raw string }

// oddRequests returns requests with every construct of RFC 9112 that parsers are known to
// read in different ways, beginning with those that frame a message.
func oddRequests() []odd {
	var out []odd
	add := func(name, raw string) { out = append(out, odd{name, raw}) }
	post := func(fields, body string) string {
		return "POST /cart HTTP/1.1\r\nHost: cart-v1.shop\r\n" + fields + "\r\n" + body
	}
	for _, method := range []string{"POST", "GET", "HEAD", "DELETE", "PATCH", "PROPFIND"} {
		for _, length := range lengthFields(len(hiddenRequest)) {
			add(method+" with "+length, strings.Replace(post(length+"\r\n", hiddenRequest), "POST", method, 1))
		}
	}
	chunked := "0\r\n\r\n" + hiddenRequest
	for _, field := range encodingFields() {
		add(field+" and a length", post(fmt.Sprintf("Content-Length: %d\r\n%s\r\n", len(chunked), field), chunked))
		add("a length and "+field, post(fmt.Sprintf("%s\r\nContent-Length: %d\r\n", field, len(chunked)), chunked))
		add(field, post(field+"\r\n", chunked))
	}
	for _, body := range chunks() {
		add("chunks "+body, post("Transfer-Encoding: chunked\r\n", body+hiddenRequest))
	}
	add("chunks in HTTP/1.0", "POST /cart HTTP/1.0\r\nHost: cart-v1.shop\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"+chunked)
	for _, line := range requestLines() {
		add("the line "+line, line+"\r\nHost: cart-v1.shop\r\n\r\n"+hiddenRequest)
	}
	for _, field := range brokenFields() {
		add("the header "+field, "GET /cart HTTP/1.1\r\nHost: cart-v1.shop\r\n"+field+"\r\n\r\n"+hiddenRequest)
	}
	add("empty lines first", "\r\n\r\n\r\nGET /cart HTTP/1.1\r\nHost: cart-v1.shop\r\n\r\n"+hiddenRequest)
	add("bare line feeds", strings.ReplaceAll("GET /cart HTTP/1.1\r\nHost: cart-v1.shop\r\n\r\n", "\r\n", "\n")+hiddenRequest)
	add("bare carriage returns", strings.ReplaceAll("GET /cart HTTP/1.1\r\nHost: cart-v1.shop\r\n\r\n", "\r\n", "\r")+hiddenRequest)
	add("the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+hiddenRequest)
	return out
}

// knownAttacks are requests that a proxy has once passed on as two.
func knownAttacks() []odd {
	const head = "POST /cart HTTP/1.1\r\nHost: cart-v1.shop\r\nTransfer-Encoding: chunked\r\n\r\n"
	return []odd{
		{"a chunk extension of zeros", head + "64;0000000000000000\r\n\r\n" + hiddenRequest + strings.Repeat("a", 200)},
		{"a long header after a request", "GET /cart HTTP/1.1\r\nHost: cart-v1.shop\r\n\r\nGET /cart HTTP/1.1\r\nHost: cart-v1.shop\r\nX: " + strings.Repeat("a", 20000) + "\r\n\r\n"},
		{"an upgrade to HTTP/2", "GET /cart HTTP/1.1\r\nHost: cart-v1.shop\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n" + hiddenRequest},
		{"data after an upgrade to a WebSocket that the application does not accept", "GET /cart HTTP/1.1\r\nHost: cart-v1.shop\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n" + hiddenRequest},
		{"another upgrade", "GET /cart HTTP/1.1\r\nHost: cart-v1.shop\r\nConnection: Upgrade\r\nUpgrade: other/1\r\n\r\n" + hiddenRequest},
		{"a body of HEAD", fmt.Sprintf("HEAD /cart HTTP/1.1\r\nHost: cart-v1.shop\r\nContent-Length: %d\r\n\r\n%s", len(hiddenRequest), hiddenRequest)},
		{"a length and chunks", fmt.Sprintf("GET /cart HTTP/1.1\r\nHost: cart-v1.shop\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n%s", len(hiddenRequest)+5, hiddenRequest)},
	}
}

// lengthFields returns lines that could mean that a body has n bytes, or none.
func lengthFields(n int) []string {
	out := []string{
		fmt.Sprintf("Content-Length: 0\r\nContent-Length: %d", n), fmt.Sprintf("Content-Length: %d\r\nContent-Length: 0", n),
		fmt.Sprintf("Content-Length: %[1]d\r\nContent-Length: %[1]d", n), fmt.Sprintf("Content-Length: %[1]d, %[1]d", n),
	}
	for _, value := range []string{"%d", "+%d", "-%d", "0x%x", "%d;", "%d a", "00%d", "%d.0", "%de0", "\"%d\"", "\t%d", "%d\t", "\v%d", "42949672%d", "4294967296%d", "18446744073709551616%d"} {
		out = append(out, "Content-Length: "+fmt.Sprintf(value, n))
	}
	for _, name := range []string{"Content-Length :", "Content-Length\t:", " Content-Length:", "Content_Length:", "Content-Length:\r\n", "X: y\r Content-Length:", "X: y\nContent-Length:", "X: y\r\n Content-Length:", "\x00Content-Length:", "Content-Length\x00:"} {
		out = append(out, fmt.Sprintf("%s %d", name, n))
	}
	return append(out, "Content-Length:", "Content-Length: -0", fmt.Sprintf("Content-Length: %d", uint64(1)<<32+uint64(n)))
}

// encodingFields returns lines that could mean that a body has chunks.
func encodingFields() []string {
	var out []string
	for _, value := range []string{"chunked", "Chunked", "CHUNKED", "chunked, identity", "identity, chunked", "gzip, chunked", "chunked, chunked", "xchunked", "chunkedx", "chunked;q=1", "\"chunked\"", "chunked\v", "\vchunked", "chunk", "identity", "", ",chunked", "chunked,", "chu\tnked", "\x00chunked"} {
		out = append(out, "Transfer-Encoding: "+value)
	}
	for _, name := range []string{"Transfer-Encoding :", "Transfer-Encoding\t:", " Transfer-Encoding:", "\tTransfer-Encoding:", "Transfer_Encoding:", "Transfer-Encoding:\r\n", "X: y\rTransfer-Encoding:", "X: y\nTransfer-Encoding:", "X: y\r\n Transfer-Encoding:", "Transfer-Encoding\r\n:", "\x00Transfer-Encoding:", "Transfer-Encoding: identity\r\nTransfer-Encoding:", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\nX:", "TE:", "Trailer: Transfer-Encoding\r\nTransfer-Encoding:"} {
		out = append(out, name+" chunked")
	}
	return out
}

// chunks returns chunked bodies that a parser may end too early or too late.
func chunks() []string {
	n := len(hiddenRequest)
	out := []string{"64;0000000000000000\r\n" + strings.Repeat("a", 100) + "\r\n0\r\n\r\n", "5;abc=def\r\nhello\r\n0\r\n\r\n"}
	for _, size := range []string{"0;a", "0;a=b", "0;a=\"b\"", "0;a=\"\n\"", "0;\n", "0 ;a", "0\t", "0 ", " 0", "0x0", "+0", "-0", "00", "0000000000000000000000", "0\n", "0\r", "0,0", "0;" + strings.Repeat("a", 20000), "", "g", ";0", "\x000"} {
		out = append(out, size+"\r\n\r\n")
	}
	for _, size := range []string{"%x;a=b", "%x\t", " %x", "0x%x", "+%x", "-%x", "%X", "0%x", "1000000%02x", "100000000%x", "10000000000000000%x", "%x\n", "%x\r", "%x;\n", "%x;\r", "%x,5"} {
		// Whoever reads the size as it looks takes the hidden request for the chunk.
		out = append(out, fmt.Sprintf(size, n)+"\r\n"+hiddenRequest+"\r\n0\r\n\r\n")
	}
	for _, size := range []string{"80000000", "ffffffff", "7fffffffffffffff", "ffffffffffffffff", "fffffffffffffffff"} {
		out = append(out, size+"\r\n")
	}
	return append(out,
		"1\r\na0\r\n\r\n", "1\r\na\n0\r\n\r\n", "1\r\na\r0\r\n\r\n", "1\r\naXX0\r\n\r\n", "1\na\r\n0\r\n\r\n", "1\r\na\r\n0\n\n", "1\r\na\r\n\r\n0\r\n\r\n",
		"0\r\nX: y\r\n\r\n", "0\r\nContent-Length: 5\r\n\r\n", "0\r\nTransfer-Encoding: chunked\r\n\r\n", "0\r\nHost: other\r\n\r\n", "0\r\n: y\r\n\r\n", "0\r\nX\r\n\r\n", "0\r\nX: y\n\n", "0\r\n X: y\r\n\r\n", "0\r\nX: y\r\n z\r\n\r\n", "0\r\nX: "+strings.Repeat("y", 20000)+"\r\n\r\n",
	)
}

// requestLines returns request lines that are odd or not valid.
func requestLines() []string {
	return []string{
		"GET http://cart-v1.shop/cart HTTP/1.1", "GET http://other.shop/cart HTTP/1.1", "GET HTTP://cart-v1.shop HTTP/1.1", "GET cart-v1.shop:80 HTTP/1.1", "CONNECT cart-v1.shop:80 HTTP/1.1", "OPTIONS * HTTP/1.1", "GET * HTTP/1.1", "GET //cart HTTP/1.1", "GET cart HTTP/1.1",
		"GET  /cart HTTP/1.1", "GET\t/cart HTTP/1.1", "GET /cart  HTTP/1.1", "GET /cart HTTP/1.1 ", " GET /cart HTTP/1.1", "GET /cart x HTTP/1.1", "GET /cart\r HTTP/1.1", "GET /cart\x00 HTTP/1.1", "GET /cart#a HTTP/1.1", "GET /cart?a=b HTTP/1.1",
		"GET /cart", "GET /cart HTTP/0.9", "GET /cart HTTP/1.0", "GET /cart HTTP/1.2", "GET /cart HTTP/2.0", "GET /cart HTTP/1.1x", "GET /cart http/1.1", "GET /cart HTTP/1,1", "GET /cart HTTP/01.1", "GET /cart HTTPS/1.1", "GET",
		"get /cart HTTP/1.1", "G[T /cart HTTP/1.1", "QUERY /cart HTTP/1.1", "PURGE /cart HTTP/1.1", "GET /" + strings.Repeat("a", 20000) + " HTTP/1.1", strings.Repeat("A", 20000) + " /cart HTTP/1.1",
		"HTTP/1.1 200 OK", "SSH-2.0-OpenSSH_9.2", "EHLO example.com", "*1\r\n$4\r\nPING", "\x00\x01\x02\x03", "\x16\x03\x01\x02\x00", "\xff\xfe",
	}
}

// brokenFields returns header lines that are odd or not valid.
func brokenFields() []string {
	return []string{
		"Host: cart-v1.shop", "Host: other.shop", "Host : cart-v1.shop", " Host: cart-v1.shop", "X", ": y", "X : y", "X\t: y", "X: y\r\n z", "X: y\r\n\tz", "X: \x00", "X: a\rb", "X: a\nY: b", "X@: y", "X\x80: y", "X: \x80\xff", "Ü: y",
		"Connection: close\r\nConnection: keep-alive", "Connection: transfer-encoding, content-length, host", "Connection: Upgrade\r\nUpgrade: websocket", "Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__", "Connection: Upgrade\r\nUpgrade: other/1", "Upgrade: TLS/1.2", "Upgrade: WebSocket\r\nConnection: Upgrade", "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 1000",
		"Expect: 100-continue", "Expect: 200-ok", "Expect: 100-continue\r\nContent-Length: 5", "TE: trailers", "Trailer: X", "Keep-Alive: timeout=0", "Proxy-Connection: close", "X-Forwarded-For: a\r\nX-Forwarded-For: b",
		"X: " + strings.Repeat("a", 15000), "X: " + strings.Repeat("a", 20000), "X: " + strings.Repeat("a", 70000), strings.Repeat("X", 20000) + ": a", strings.Repeat("X: a\r\n", 300) + "X: a", strings.Repeat("X: "+strings.Repeat("a", 1000)+"\r\n", 100) + "X: a",
	}
}

// hiddenAnswer is an answer that nobody has asked for.
const hiddenAnswer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{\"pod\":\"hidden\"}"

// oddAnswers returns answers that parsers read in different ways, or refuse. Some are followed
// by hiddenAnswer.
func oddAnswers() []odd {
	var out []odd
	add := func(name, raw string) { out = append(out, odd{name, raw}) }
	for _, line := range []string{
		"HTTP/1.1 200 OK", "HTTP/1.1 200", "HTTP/1.1 200 ", "HTTP/1.0 200 OK", "HTTP/1.1  200 OK", "HTTP/1.1 99 Low", "HTTP/1.1 600 High", "HTTP/1.1 999 High", "HTTP/1.1 0 None", "HTTP/1.1 2000 OK", "HTTP/1.1 -20 OK", "HTTP/1.1 abc OK", "HTTP/1.1 204 No Content", "HTTP/1.1 304 Not Modified", "HTTP/1.1 101 Switching Protocols", "HTTP/1.1 103 Early Hints", "HTTP/1.1 100 Continue", "HTTP/1.2 200 OK", "HTTP/2.0 200 OK", "ICY 200 OK", "GET / HTTP/1.1", "220 mail ESMTP", "\x00\x01\x02", "HTTP/1.1 200 " + strings.Repeat("a", 20000),
	} {
		add("the line "+line, line+"\r\nContent-Length: 0\r\n\r\n"+hiddenAnswer)
	}
	for _, field := range brokenFields() {
		add("the header "+field, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"+field+"\r\n\r\n"+hiddenAnswer)
	}
	for _, field := range lengthFields(len(hiddenAnswer)) {
		add("the length "+field, "HTTP/1.1 200 OK\r\n"+field+"\r\n\r\n"+hiddenAnswer)
	}
	for _, field := range encodingFields() {
		add("the encoding "+field, "HTTP/1.1 200 OK\r\n"+field+"\r\n\r\n0\r\n\r\n"+hiddenAnswer)
		add("the encoding "+field+" and a length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n"+field+"\r\n\r\n0\r\n\r\n"+hiddenAnswer)
	}
	for _, body := range chunks() {
		add("chunks "+body, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"+body+hiddenAnswer)
	}
	add("nothing", "")
	add("bare line feeds", "HTTP/1.1 200 OK\nContent-Length: 0\n\n"+hiddenAnswer)
	return out
}
