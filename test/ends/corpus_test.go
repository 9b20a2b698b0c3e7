package ends

import (
	"fmt"
	"strings"
)

// exchange is what a client sends and what the server answers, over one connection.
type exchange struct {
	name string
	// requests are sent one after the other: each when the answer to the former is complete, unless
	// pipelined is set.
	requests  []string
	pipelined bool
	// answers belong to the requests. An answer is sent when its request is complete, or once its head
	// is there if early is set.
	answers []string
	early   bool
	// between is sent by the server when it has the head of the first request.
	between string
	// rest is sent by the client when it has got an interim answer, or after a while.
	rest string
	// halfCloses is set if the client closes its direction after the last request, and leaves if it
	// closes the connection without waiting for the answer, which the server notices.
	halfCloses, leaves bool
	// closes is set if the server closes the connection after its last answer.
	closes bool
	// upgraded is echoed by the server after its answer, if it is set.
	upgraded string
}

const fine = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"

// get returns a request without a body. The server finds the exchange by a header that sendOn adds.
func get(target string, fields ...string) string { return request("GET", target, fields...) }

func request(method, target string, fields ...string) string {
	return method + " " + target + " HTTP/1.1\r\nHost: server\r\n" + strings.Join(append(fields, ""), "\r\n") + "\r\n"
}

func answer(line string, fields ...string) string {
	return "HTTP/1.1 " + line + "\r\n" + strings.Join(append(fields, ""), "\r\n") + "\r\n"
}

// corpus returns all exchanges. Their names are unique.
func corpus() []exchange {
	var all []exchange
	add := func(e exchange) { all = append(all, e) }
	simple := func(name, request, answer string) {
		add(exchange{name: name, requests: []string{request}, answers: []string{answer}})
	}
	for _, method := range []string{"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "PURGE", "QUERY", "FROB"} {
		simple("method "+method, request(method, "/a"), fine)
	}
	for _, method := range []string{"POST", "DELETE", "PROPFIND", "GET"} {
		simple("a body of "+method, request(method, "/a", "Content-Length: 3")+"abc", fine)
	}
	simple("method HEAD", request("HEAD", "/a"), answer("200 OK", "Content-Length: 5"))
	simple("OPTIONS *", request("OPTIONS", "*"), fine)
	for _, target := range []string{
		"/a%2Fb", "/%7Euser", "//double//slash", "/a/../b", "/a/./b", "/a|b{c}^`", "/a?b=c&&d=%zz;e", "/?", "/a;b=c", "/é", "/a%c3%a9", "/" + strings.Repeat("long", 2000),
	} {
		simple("target "+short(target), get(target), fine)
	}
	simple("an absolute target", "GET http://server/absolute HTTP/1.1\r\nHost: server\r\n\r\n", fine)
	simple("an absolute target of another host", "GET http://other/absolute HTTP/1.1\r\nHost: server\r\n\r\n", fine)
	for _, upgrade := range []string{"TLS/1.2", "h2c", "foo"} {
		simple("upgrade to "+upgrade+" that the server ignores", get("/a", "Connection: Upgrade", "Upgrade: "+upgrade), fine)
	}
	socket := get("/a", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")
	add(exchange{name: "a WebSocket", requests: []string{socket}, upgraded: "bytes of a WebSocket", closes: true,
		answers: []string{answer("101 Switching Protocols", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")}})
	simple("a WebSocket that the server ignores", socket, fine)
	simple("a WebSocket that is refused", socket, answer("403 Forbidden", "Content-Length: 2")+"no")

	upload := request("POST", "/a", "Expect: 100-continue", "Content-Length: 3")
	add(exchange{name: "expect, and the server continues", requests: []string{upload}, between: "HTTP/1.1 100 Continue\r\n\r\n", rest: "abc", answers: []string{fine}})
	add(exchange{name: "expect, and the server refuses", requests: []string{upload}, early: true, closes: true, answers: []string{answer("417 No", "Content-Length: 0", "Connection: close")}})
	for _, line := range []string{"103 Early Hints", "102 Processing", "199 Odd"} {
		add(exchange{name: "interim " + line, requests: []string{get("/a")}, between: answer(line, "Link: </a.css>; rel=preload"), answers: []string{fine}})
	}
	chunks := "3\r\nabc\r\n2\r\nde\r\n0\r\n"
	simple("a chunked request", request("POST", "/a", "Transfer-Encoding: chunked")+chunks+"\r\n", fine)
	simple("trailers of a request", request("POST", "/a", "Transfer-Encoding: chunked", "Trailer: X-Sum")+chunks+"X-Sum: 5\r\n\r\n", fine)
	simple("chunk extensions of a request", request("POST", "/a", "Transfer-Encoding: chunked")+"3;a=b\r\nabc\r\n0;c\r\n\r\n", fine)
	simple("a chunked answer", get("/a"), answer("200 OK", "Transfer-Encoding: chunked")+chunks+"\r\n")
	simple("trailers of an answer", get("/a", "TE: trailers"), answer("200 OK", "Transfer-Encoding: chunked", "Trailer: X-Sum")+chunks+"X-Sum: 5\r\n\r\n")
	simple("trailers of an empty answer", get("/a", "TE: trailers"), answer("200 OK", "Transfer-Encoding: chunked", "Trailer: X-Sum")+"0\r\nX-Sum: 5\r\n\r\n")

	add(exchange{name: "HTTP/1.0", requests: []string{"GET /a HTTP/1.0\r\nHost: server\r\n\r\n"}, answers: []string{fine}, closes: true})
	add(exchange{name: "HTTP/1.0 without a host", requests: []string{"GET /a HTTP/1.0\r\n\r\n"}, answers: []string{fine}, closes: true})
	add(exchange{name: "HTTP/1.0 that is kept alive", requests: []string{"GET /a HTTP/1.0\r\nHost: server\r\nConnection: keep-alive\r\n\r\n"}, answers: []string{"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello"}})
	add(exchange{name: "HTTP/1.0 and an answer without a length", requests: []string{"GET /a HTTP/1.0\r\nHost: server\r\n\r\n"}, answers: []string{"HTTP/1.0 200 OK\r\n\r\nhello"}, closes: true})
	add(exchange{name: "an answer without a length", requests: []string{get("/a")}, answers: []string{answer("200 OK") + "hello"}, closes: true})
	add(exchange{name: "Connection: close", requests: []string{get("/a", "Connection: close")}, answers: []string{answer("200 OK", "Content-Length: 5", "Connection: close") + "hello"}, closes: true})
	simple("a range", get("/a", "Range: bytes=1-2"), answer("206 Partial Content", "Content-Range: bytes 1-2/5", "Content-Length: 2")+"el")
	simple("no content", get("/a"), answer("204 No Content"))
	simple("not modified", get("/a", `If-None-Match: "x"`), answer("304 Not Modified", `ETag: "x"`, "Content-Length: 5"))
	for _, line := range []string{"200 Fine", "299 Odd", "404 ", "418 I'm a teapot", "500 Broken", "503 Later", "507 Full", "599 Highest", "417 No", "431 Large"} {
		simple("answer "+line, get("/a"), answer(line, "Content-Length: 5")+"hello")
	}
	simple("cookies on several lines", get("/a", "Cookie: a=b", "Cookie: c=d"), answer("200 OK", "Set-Cookie: a=b; Path=/", "Set-Cookie: c=d, e", "Content-Length: 0"))
	simple("headers on several lines", get("/a", "Accept: a/b", "Accept: c/d", "X-Two: 1", "X-Two: 2"), answer("200 OK", "Warning: 199 - a", "Warning: 199 - b", "X-Two: 1", "X-Two: 2", "Content-Length: 0"))
	simple("spelling of headers", get("/a", "X-CamelCase: v", "ETAG: w", "x_under_score: u"), answer("200 OK", "X-CamelCase: v", "WWW-Authenticate: Basic", "Content-Length: 0"))
	simple("odd values", get("/a", "X-Empty:", "X-Spaces:   a  b  ", "X-Tab: a\tb", "X-Latin: \xe9", "X-Quote: \"a\\\"b\""), answer("200 OK", "X-Empty:", "X-Spaces:   a  b  ", "X-Latin: \xe9", "Content-Length: 0"))
	simple("many headers", get("/a", many(120)...), answer("200 OK", append(many(120), "Content-Length: 0")...))
	simple("a long header", get("/a", "X-Long: "+strings.Repeat("a", 15000)), answer("200 OK", "X-Long: "+strings.Repeat("a", 15000), "Content-Length: 0"))
	simple("a very long header", get("/a", "X-Long: "+strings.Repeat("a", 40000)), answer("200 OK", "Content-Length: 0"))

	add(exchange{name: "two requests", requests: []string{get("/a"), get("/b")}, answers: []string{fine, fine}})
	add(exchange{name: "two requests at once", pipelined: true, requests: []string{get("/a"), get("/b")}, answers: []string{fine, fine}})
	add(exchange{name: "an early answer", requests: []string{request("POST", "/a", "Content-Length: 6") + "abc"}, early: true, closes: true, answers: []string{answer("413 Too Large", "Content-Length: 0", "Connection: close")}})
	add(exchange{name: "keep-alive after an early answer", requests: []string{request("POST", "/a", "Content-Length: 3") + "abc", get("/b")}, early: true, answers: []string{fine, fine}})
	add(exchange{name: "a client that half-closes", requests: []string{get("/a")}, halfCloses: true, answers: []string{fine}, closes: true})
	add(exchange{name: "a client that leaves", requests: []string{get("/a")}, leaves: true})
	add(exchange{name: "an answer that is cut off", requests: []string{get("/a")}, answers: []string{answer("200 OK", "Content-Length: 9") + "hello"}, closes: true})
	add(exchange{name: "a chunked answer that is cut off", requests: []string{get("/a")}, answers: []string{answer("200 OK", "Transfer-Encoding: chunked") + "5\r\nhello\r\n"}, closes: true})
	return all
}

func many(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("X-Many-%d: v", i)
	}
	return out
}

func short(text string) string { return text[:min(len(text), 20)] }
