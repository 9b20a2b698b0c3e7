package haproxy

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// get sends a target as it is, and returns the answer and the path that the server got.
func (r *running) get(target string) (*http.Response, seen, error) {
	conn, err := dial(r.outbound, storeAddress)
	if err != nil {
		return nil, seen{}, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: books.example.com\r\nConnection: close\r\n\r\n", target); err != nil {
		return nil, seen{}, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return nil, seen{}, err
	}
	defer response.Body.Close()
	var s seen
	if response.StatusCode == 200 {
		err = json.NewDecoder(response.Body).Decode(&s)
	}
	return response, s, err
}

// TestPathsOfRoutes compares the forwarded paths with package mesh.
func TestPathsOfRoutes(t *testing.T) {
	ca := newAuthority(t)
	p := newPeer(t, ca, store)
	f := newFixture(buyer)
	d := f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, p.address))
	d.Routes[0].Match.Path.Prefix = "/public"
	r := runOutbound(t, ca, f)
	for _, path := range []string{
		"/public", "/public/a", "/publicity", "/public/../admin", "/public/%2e%2e/admin", "/x/../public/a", "/%70ublic/%41", "/public/.", "/public/./a/..", "/public/a/..", "/public//a", "//public",
		"/public/%2f%5C", `/public\a`, `/public/a"<>^` + "`{|}", "/public/..;v=1/public", "/public/%2e.;v=1", "/public/%2e%2e;v=1", "/public/.;v=1/a", "/public/%00", "/public/a;v=1", "/public/%3f",
		"/../../public/a", "/public/a/b/../../..", "/public/~%7e%7E", "/public/...", "/public/.a", "/public/a.b", "/public/a%2fb/../c", "/public/%c3%a9",
	} {
		for _, query := range []string{"", "?a=/../%2e"} {
			want, normal := mesh.NormalPath(path + query)
			normal = normal && mesh.HTTPMatch{Path: d.Routes[0].Match.Path}.Matches(&mesh.Request{Path: want})
			response, got, err := r.get(path + query)
			switch {
			case err != nil:
				t.Errorf("%s: %v", path+query, err)
			case normal && (response.StatusCode != 200 || got.Path != want):
				t.Errorf("%s gives %d, and the server got %s, want %s", path+query, response.StatusCode, got.Path, want)
			case !normal && response.StatusCode != 404 && response.StatusCode != 400:
				t.Errorf("%s gives %d, want 404", path+query, response.StatusCode)
			}
		}
	}
}

// TestPathsAsTheyCame checks that a path stays as it is if no route compares one.
func TestPathsAsTheyCame(t *testing.T) {
	ca := newAuthority(t)
	p := newPeer(t, ca, store)
	f := newFixture(buyer)
	f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, p.address))
	r := runOutbound(t, ca, f)
	const path = "/a/%2e%2e//../b{|}^%41"
	if response, got, err := r.get(path); err != nil || response.StatusCode != 200 || got.Path != path {
		t.Errorf("the answer is %v, %v, and the server got %s", response, err, got.Path)
	}
}

// TestQueriesOfRoutes compares which queries match with package mesh.
func TestQueriesOfRoutes(t *testing.T) {
	ca := newAuthority(t)
	p := newPeer(t, ca, store)
	f := newFixture(buyer)
	d := f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, p.address))
	b := d.Routes[0].Backends[0].Backend
	marked := func(mark string, match ...mesh.KeyMatch) mesh.Route {
		return mesh.Route{Match: mesh.HTTPMatch{Query: match}, Backends: []mesh.WeightedBackend{{Backend: b, Weight: 1, Response: mesh.HeaderChanges{Set: []mesh.Header{{Name: "x-route", Value: mark}}}}}}
	}
	matches := []mesh.KeyMatch{
		{Name: "$s a", StringMatch: mesh.StringMatch{Exact: "a b"}}, {Name: "q", StringMatch: mesh.StringMatch{Regex: "[0-9]+"}}, {Name: "a[]", StringMatch: mesh.StringMatch{Prefix: "x&"}},
		{Name: "é", StringMatch: mesh.StringMatch{Exact: "ü"}}, {Name: "p", StringMatch: mesh.StringMatch{Present: true}},
	}
	d.Routes = nil
	for i, m := range matches {
		d.Routes = append(d.Routes, marked(fmt.Sprint(i), m))
	}
	d.Routes = append(d.Routes, marked("none"))
	r := runOutbound(t, ca, f)
	for _, query := range []string{
		"$s+a=a%20b", "%24s%20a=a+b", "$s+a=a+b&$s+a=c", "$s+a=c&$s+a=a+b", "$s+a=a+b;c", "$s+a=%zz&$s+a=a+b", "$s+a", "$s+a=", "&&$s+a=a+b&", "x=$s+a=a+b", "x%3d1=2&$s+a=a+b", "q=1", "%71=%31", "q=1a", "q=1&q=a",
		"q=a&q=1", "qq=1", "a[]=x%26y", "a%5b%5D=x%26", "a[]=x", "%c3%a9=%C3%BC", "p", "p=", "%70", "p=1&p=2", "p;a", "a;b&p", "P=1", "", "q=%31%32&%zz", "q=+1",
	} {
		want := "none"
		for i, m := range matches {
			if (mesh.HTTPMatch{Query: []mesh.KeyMatch{m}}).Matches(&mesh.Request{Path: "/?" + query}) {
				want = fmt.Sprint(i)
				break
			}
		}
		response, _, err := r.get("/?" + query)
		if err != nil || response.Header.Get("X-Route") != want {
			t.Errorf("%s: the answer is %v, %v, want the route %s", query, response, err, want)
		}
	}
}

// TestInternalHeaders checks that neither a client nor a server can send the headers by which
// HAProxy's own parts tell each other something.
func TestInternalHeaders(t *testing.T) {
	ca := newAuthority(t)
	p := newPeer(t, ca, store)
	p.answer = func(w http.ResponseWriter, r *http.Request) bool {
		for _, name := range []string{"Upstream", "Status", "Other"} {
			w.Header().Set("X-Outrigger-"+name, `999;"]forged`)
		}
		return false
	}
	f := newFixture(buyer)
	d := f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, p.address))
	d.Routes[0].Retry = &mesh.Retry{On: []string{"5xx"}, Attempts: 1, Backoff: time.Millisecond}
	r := runOutbound(t, ca, f)
	// A request without a length is not complete when it is sent.
	for _, chunked := range []bool{false, true} {
		conn, err := dial(r.outbound, storeAddress)
		if err != nil {
			t.Fatal(err)
		}
		head := "POST /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Outrigger-Try: forged\r\nX-Outrigger-To: nowhere\r\nX_Outrigger_Caller: forged\r\n"
		if chunked {
			fmt.Fprint(conn, head+"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
			time.AfterFunc(200*time.Millisecond, func() { fmt.Fprint(conn, "0\r\n\r\n") })
		} else {
			fmt.Fprint(conn, head+"Content-Length: 0\r\n\r\n")
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || response.StatusCode != 200 {
			t.Fatalf("chunked %v: the answer is %v, %v", chunked, response, err)
		}
		var got seen
		if err := json.NewDecoder(response.Body).Decode(&got); err != nil {
			t.Fatal(err)
		}
		conn.Close()
		for name := range response.Header {
			if len(name) > 10 && name[:10] == "X-Outrigge" {
				t.Errorf("chunked %v: the client got %s", chunked, name)
			}
		}
		if len(got.Header["X_outrigger_caller"])+len(got.Header["X-Outrigger-Try"]) > 0 {
			t.Errorf("chunked %v: the server got %v", chunked, got.Header)
		}
	}
	r.awaitLog(`"upstream_peer":"` + store.String() + `"`)
	for _, text := range []string{r.log.String(), r.spans.String()} {
		for i := range len(text) - 6 {
			if text[i:i+6] == "forged" {
				t.Fatalf("a record has a forged text: %.300s", text[max(0, i-200):])
			}
		}
	}
}
