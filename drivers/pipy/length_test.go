package pipy

import "testing"

// TestLengths decides which requests say in one way only where they end.
func TestLengths(t *testing.T) {
	e := newEngine(t)
	type head = map[string]any
	request := func(method, protocol string, headers head) head {
		headers["host"] = "cart"
		h := head{"method": method, "path": "/", "headers": headers}
		if protocol != "" {
			h["protocol"] = protocol
		} else {
			h["authority"] = "cart"
		}
		return h
	}
	for name, tt := range map[string]struct {
		head head
		want bool
	}{
		"none":                             {request("GET", "HTTP/1.1", head{}), true},
		"a length":                         {request("POST", "HTTP/1.1", head{"content-length": "12"}), true},
		"chunks":                           {request("POST", "HTTP/1.1", head{"transfer-encoding": "chunked"}), true},
		"both":                             {request("POST", "HTTP/1.1", head{"content-length": "12", "transfer-encoding": "chunked"}), false},
		"two lengths":                      {request("POST", "HTTP/1.1", head{"content-length": []string{"12", "13"}}), false},
		"the same length twice":            {request("POST", "HTTP/1.1", head{"content-length": []string{"12", "12"}}), false},
		"two lengths in a line":            {request("POST", "HTTP/1.1", head{"content-length": "12, 12"}), false},
		"an empty length":                  {request("POST", "HTTP/1.1", head{"content-length": ""}), false},
		"a length and more":                {request("POST", "HTTP/1.1", head{"content-length": "12 "}), false},
		"a signed length":                  {request("POST", "HTTP/1.1", head{"content-length": "+12"}), false},
		"a length of base 16":              {request("POST", "HTTP/1.1", head{"content-length": "0x12"}), false},
		"the longest":                      {request("POST", "HTTP/1.1", head{"content-length": "2147483647"}), true},
		"one over 31 bits":                 {request("POST", "HTTP/1.1", head{"content-length": "2147483648"}), false},
		"one over 31 bits, by HTTP/2":      {request("POST", "", head{"content-length": "2147483648"}), true},
		"another encoding":                 {request("POST", "HTTP/1.1", head{"transfer-encoding": "gzip, chunked"}), false},
		"chunks in capitals":               {request("POST", "HTTP/1.1", head{"transfer-encoding": "Chunked"}), false},
		"two encodings":                    {request("POST", "HTTP/1.1", head{"transfer-encoding": []string{"chunked", "chunked"}}), false},
		"a HEAD request":                   {request("HEAD", "HTTP/1.1", head{}), true},
		"a HEAD request without a body":    {request("HEAD", "HTTP/1.1", head{"content-length": "0"}), true},
		"a HEAD request with a body":       {request("HEAD", "HTTP/1.1", head{"content-length": "12"}), false},
		"a HEAD request in chunks":         {request("HEAD", "HTTP/1.1", head{"transfer-encoding": "chunked"}), false},
		"a HEAD request of HTTP/2, a body": {request("HEAD", "", head{"content-length": "12"}), false},
	} {
		if got := e.call("request.js", "clean", tt.head, false).ToBoolean(); got != tt.want {
			t.Errorf("%s: a request is accepted: %t, want %t", name, got, tt.want)
		}
	}
}
