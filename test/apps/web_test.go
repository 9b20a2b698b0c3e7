package apps

// web are the servers of HTTP.
var web = []application{
	{
		name: "nginx", program: "nginx", few: true, file: "usr/sbin/nginx",
		ports:  []port{{number: 8080, appProtocol: "http"}},
		advice: "Nothing.",
		checks: []check{
			{name: "a small file", command: `curl -sS http://$HOST:8080/`, want: "hello"},
			{name: "10 MB", command: `curl -sS http://$HOST:8080/large | md5sum | cut -c-32`, want: "f1c9645dbc14efddc7d8a322685f26eb"},
			{name: "a range of it", command: `curl -sS -r 100-199 -w ' %{http_code}' -o range http://$HOST:8080/large; wc -c <range`, want: "206100"},
			{name: "HEAD", command: `curl -sSI http://$HOST:8080/large | tr -d '\r' | tr A-Z a-z | grep '^content-length'`, want: "content-length: 10485760"},
			{name: "an unchanged file", command: `curl -sS -o /dev/null -w '%{http_code}' -H "If-None-Match: $(curl -sSI http://$HOST:8080/ | tr -d '\r' | sed -n 's/^[Ee][Tt]ag: //p')" http://$HOST:8080/`, want: "304"},
			{name: "an upload", command: `head -c 3000000 /dev/zero | curl -sS -T - http://$HOST:8080/upload/$UNIQUE -o /dev/null -w '%{http_code} '; curl -sS http://$HOST:8080/upload/$UNIQUE | wc -c`, want: "201 3000000"},
			{name: "an upload that is refused", command: `head -c 3000000 /dev/zero | curl -sS --data-binary @- http://$HOST:8080/small -o /dev/null -w '%{http_code}'`, want: "413"},
			{name: "an upload that is refused before it", command: `head -c 3000000 /dev/zero >up; curl -sS -H 'Expect: 100-continue' --data-binary @up http://$HOST:8080/small -o /dev/null -w '%{http_code} %{size_upload}'`, want: "413 0"},
			{name: "a redirect", command: `curl -sS -o /dev/null -w '%{http_code} %{redirect_url}' http://$HOST:8080/old`, want: "301 http://shop.example/new"},
			{name: "compression", command: `curl -sS -H 'Accept-Encoding: gzip' -o /dev/null -D - http://$HOST:8080/text | tr -d '\r' | tr A-Z a-z | grep '^content-encoding'`, want: "content-encoding: gzip"},
			{name: "100 requests of one connection", command: `curl -sS -o /dev/null -w '%{num_connects}' "http://$HOST:8080/?[1-100]" | tr -d 0`, want: "1"},
			{name: "HTTP/1.0", command: `curl -sS -0 http://$HOST:8080/`, want: "hello"},
		},
		// nginx closes it at once when it is told to end, so the download is cut.
		session: `curl -s http://$HOST:8080/slow >got & download=$!
while kill -0 $download 2>/dev/null; do
	[ ! -e $STOP ] || size=${size:-$(wc -c <got)}
	[ -z "$size" ] || [ $(wc -c <got) -eq $size ] || { echo kept; kill $download; exit; }
	sleep 0.2
done
wait $download || echo ended`,
	},
	{
		name: "http2", program: "nghttpd (HTTP/2)", file: "usr/sbin/nghttpd",
		ports:  []port{{number: 8080, appProtocol: "kubernetes.io/h2c"}},
		advice: "`appProtocol: kubernetes.io/h2c` or `http2`, since the server speaks no HTTP/1.1.",
		checks: []check{
			{name: "HTTP/2 with prior knowledge", command: `curl -sS --http2-prior-knowledge -w ' %{http_version}' http://$HOST:8080/`, want: "hello 2"},
			{name: "10 MB", command: `curl -sS --http2-prior-knowledge http://$HOST:8080/large | md5sum | cut -c-32`, want: "f1c9645dbc14efddc7d8a322685f26eb"},
			{name: "a trailer", command: `nghttp -v http://$HOST:8080/ | grep -o 'x-sum: 5'`, want: "x-sum: 5"},
			{name: "400 requests of 4 connections, 10 at once", command: `h2load -n 400 -c 4 -m 10 http://$HOST:8080/ | grep -o '[0-9]* succeeded, [0-9]* failed'`, want: "400 succeeded, 0 failed"},
		},
	},
	{
		name: "grpc", program: "gRPC in Python", file: "usr/lib/python3/dist-packages/grpc/__init__.py",
		ports:  []port{{number: 50051, appProtocol: "grpc"}},
		advice: "`appProtocol: grpc`.",
		checks: []check{
			{name: "a call, a deadline, streams in both directions, 3 MB", command: `python3 /apps/grpc_client.py $HOST:50051`,
				want: "hello yes\nDEADLINE_EXCEEDED\n499500\n1000000\n0123456789\n3000000"},
			{name: "an error with details", command: `python3 /apps/grpc_client.py $HOST:50051 error`, want: "FAILED_PRECONDITION as you like yes 4000"},
		},
		session: `python3 /apps/grpc_client.py $HOST:50051 session $STOP`,
	},
	{
		name: "web", program: "aiohttp (WebSocket, server-sent events)", file: "usr/lib/python3/dist-packages/aiohttp/__init__.py",
		ports:  []port{{number: 8080, appProtocol: "http"}},
		advice: "Nothing.",
		checks: []check{
			{name: "a WebSocket with a subprotocol, 100 messages, 2 MB, a ping, and the server's close code", command: `python3 /apps/web_client.py ws://$HOST:8080/socket`, want: "chat 4001 as you like"},
			{name: "events are not held back", command: `curl -sN http://$HOST:8080/events | { read -r first; echo "$first"; }`, want: "data: 0"},
			{name: "events until their end", command: `curl -sSN "http://$HOST:8080/events?n=10" | grep -c data:`, want: "10"},
		},
		session: `python3 /apps/web_client.py ws://$HOST:8080/socket $STOP`,
	},
}
