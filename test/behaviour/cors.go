package behaviour

import (
	"net/http"
	"strings"
	"testing"
)

func testCORS(t *testing.T, w *testMesh) {
	w.apply(t, "route.yaml", route("HTTPRoute", "shop", "cart", `
  - filters:
    - type: CORS
      cors: {allowOrigins: ["https://a.example.com", "https://*.wild.example.com"], allowMethods: [GET, PUT], allowHeaders: ["*"], exposeHeaders: [X-Shown], allowCredentials: true, maxAge: 60}
    backendRefs: [{name: cart-v1, port: 80}]
  - matches: [{path: {value: /cart/moved}}]
    filters:
    - type: CORS
      cors: {allowOrigins: ["https://a.example.com"], allowMethods: [GET], exposeHeaders: [X-Shown], maxAge: 60}
    - {type: RequestRedirect, requestRedirect: {statusCode: 307, hostname: b.example.com}}
    - {type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: X-Shown, value: moved}]}}
`))
	url := cart
	answer := func(method, origin string, header http.Header) (reply, error) {
		if header == nil {
			header = http.Header{}
		}
		if origin != "" {
			header.Set("Origin", origin)
		}
		return w.send(w.pod(t, "users/web"), request{method: method, url: url, header: header})
	}
	expect := func(what string, r reply, want map[string]string) {
		t.Helper()
		for name, value := range want {
			if got := strings.Join(r.Header[http.CanonicalHeaderKey(name)], ","); got != value {
				t.Errorf("%s has %s: %q, want %q", what, name, got, value)
			}
		}
	}
	preflight := func(origin string) (reply, error) {
		return answer(http.MethodOptions, origin, http.Header{"Access-Control-Request-Method": {"PUT"}, "Access-Control-Request-Headers": {"x-a,x-b"}})
	}
	w.repeat(t, "a preflight request", isStatus(http.StatusNoContent), func() (reply, error) { return preflight("https://a.example.com") })
	for _, origin := range []string{"https://a.example.com", "https://b.c.wild.example.com"} {
		r, err := preflight(origin)
		if err != nil || r.Status != http.StatusNoContent {
			t.Fatalf("the status of a preflight request from %s is %d, %v", origin, r.Status, err)
		}
		expect("the answer to a preflight request", r, map[string]string{
			"Access-Control-Allow-Origin": origin, "Access-Control-Allow-Methods": "GET, PUT", "Access-Control-Allow-Headers": "x-a,x-b",
			"Access-Control-Allow-Credentials": "true", "Access-Control-Max-Age": "60", "Access-Control-Expose-Headers": "X-Shown",
		})
		if r, err = answer(http.MethodGet, origin, nil); err != nil || isFrom("cart-v1")(r) != nil {
			t.Fatalf("the status of a request is %d, %v", r.Status, err)
		}
		expect("the answer to a request", r, map[string]string{
			"Access-Control-Allow-Origin": origin, "Access-Control-Allow-Credentials": "true", "Access-Control-Expose-Headers": "X-Shown",
		})
	}
	none := map[string]string{"Access-Control-Allow-Origin": "", "Access-Control-Allow-Methods": "", "Access-Control-Expose-Headers": ""}
	for _, origin := range []string{"https://other.example.com", "https://wild.example.com", "http://a.example.com"} {
		r, err := preflight(origin)
		if err != nil || r.Status != http.StatusNoContent {
			t.Errorf("the status of a preflight request from %s is %d, %v", origin, r.Status, err)
		}
		expect("the answer to a preflight request from "+origin, r, none)
	}
	for _, origin := range []string{"", "https://other.example.com"} {
		r, err := answer(http.MethodGet, origin, nil)
		if err != nil || isFrom("cart-v1")(r) != nil {
			t.Errorf("the status of a request from %q is %d, %v", origin, r.Status, err)
		}
		expect("the answer to a request from "+origin, r, none)
	}

	// A redirect is such an answer too.
	url = shopCart + "/cart/moved"
	r, err := preflight("https://a.example.com")
	if err != nil || r.Status != http.StatusNoContent {
		t.Errorf("the status of a preflight request for what is redirected is %d, %v", r.Status, err)
	}
	expect("the answer to a preflight request for what is redirected", r, map[string]string{
		"Access-Control-Allow-Origin": "https://a.example.com", "Access-Control-Allow-Methods": "GET", "Vary": "Origin", "X-Shown": "", "Location": "",
	})
	for origin, shown := range map[string]string{"https://a.example.com": "X-Shown", "https://other.example.com": ""} {
		if r, err = answer(http.MethodGet, origin, nil); err != nil || r.Status != http.StatusTemporaryRedirect {
			t.Errorf("the status of a request that is redirected is %d, %v", r.Status, err)
		}
		want := map[string]string{"Access-Control-Allow-Origin": "", "Access-Control-Expose-Headers": shown, "X-Shown": "moved", "Location": "http://b.example.com/cart/moved"}
		if shown != "" {
			want["Access-Control-Allow-Origin"] = origin
		}
		expect("the redirect of a request from "+origin, r, want)
	}
}
