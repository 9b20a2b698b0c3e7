package mirror_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// setOf returns a Set of files, given as alternating names and texts.
func setOf(t testing.TB, files ...string) mirror.Set {
	t.Helper()
	var all []*mirror.File
	for i := 0; i < len(files); i += 2 {
		file, err := mirror.NewFile(files[i], files[i+1])
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, file)
	}
	return mirror.NewSet(all...)
}

// texts returns the files of a Set by name.
func texts(set mirror.Set) map[string]string {
	all := make(map[string]string)
	for name, file := range set.All() {
		all[name] = file.Text
	}
	return all
}

// serve serves the Feed, and returns a client that does not wait.
func serve(t testing.TB, feed *mirror.Feed) *mirror.Client {
	t.Helper()
	server := httptest.NewServer(feed)
	t.Cleanup(server.Close)
	return &mirror.Client{URL: server.URL, Wait: -1}
}

// follow polls once and returns the resulting Set.
func follow(t testing.TB, client *mirror.Client, has mirror.Set, others ...string) (mirror.Set, *mirror.Change) {
	t.Helper()
	have := ""
	if has.Len() > 0 {
		have = mirror.Version(has)
	}
	change, err := client.Poll(t.Context(), have, others...)
	if err != nil {
		t.Fatal(err)
	}
	if change == nil {
		return has, nil
	}
	next, err := change.Apply(has)
	if err != nil {
		t.Fatal(err)
	}
	return next, change
}

// TestFollow checks that a client gets only the differences.
func TestFollow(t *testing.T) {
	feed := new(mirror.Feed)
	client := serve(t, feed)
	var has mirror.Set
	var change *mirror.Change
	for i, set := range []mirror.Set{
		setOf(t, "a", "1", "b/c", "2", "d", "3"),
		setOf(t, "a", "1", "b/c", "changed", "e", "4"),
		setOf(t, "a", "1", "b/c", "changed", "e", "<&>\u2028"),
		setOf(t),
		setOf(t, "a", "1"),
	} {
		feed.Set(set)
		has, change = follow(t, client, has)
		if diff := cmp.Diff(texts(set), texts(has)); diff != "" {
			t.Fatalf("%d: the client has (-want +got):\n%s", i, diff)
		}
		switch i {
		case 0:
			if change.Base != "" || len(change.Files) != 3 {
				t.Errorf("the first change is %+v", change)
			}
		case 1:
			if change.Base == "" || len(change.Files) != 2 || change.Files[0].Name != "b/c" || !cmp.Equal(change.Gone, []string{"d"}) {
				t.Errorf("the change is %+v", change)
			}
		case 2:
			if len(change.Files) != 1 || len(change.Gone) != 0 {
				t.Errorf("the change is %+v", change)
			}
		}
	}
	if _, change := follow(t, client, has); change != nil {
		t.Errorf("there is another change: %+v", change)
	}
}

// TestFormerVersions polls with versions of all ages: the result is always right, and it is
// a difference if the Feed still knows the version.
func TestFormerVersions(t *testing.T) {
	feed := new(mirror.Feed)
	client := serve(t, feed)
	sets := make([]mirror.Set, 12)
	for i := range sets {
		sets[i] = setOf(t, "same", "", "file", fmt.Sprint(i))
		feed.Set(sets[i])
		follow(t, client, mirror.Set{})
	}
	last := len(sets) - 1
	for i, set := range sets {
		got, change := follow(t, client, set)
		if mirror.Version(got) != mirror.Version(sets[last]) {
			t.Errorf("a client with version %d gets %v", i, texts(got))
		}
		if i == last-1 && change.Base == "" {
			t.Error("a client with the former version gets all files")
		}
	}
	if _, change := follow(t, client, setOf(t, "of another server", "")); change == nil || change.Base != "" {
		t.Errorf("an unknown version: %+v", change)
	}
	// A version that is used again and again is kept.
	feed = new(mirror.Feed)
	client = serve(t, feed)
	for i, set := range sets {
		feed.Set(set)
		if _, change := follow(t, client, sets[0]); change != nil && change.Base == "" {
			t.Errorf("at version %d the one in use is not kept", i)
		}
	}
}

// TestWait lets several clients wait for a change, which all get at once.
func TestWait(t *testing.T) {
	acked := make(chan string, 100)
	feed := &mirror.Feed{Acked: func(version string) { acked <- version }}
	client := serve(t, feed)
	client.Wait = mirror.MaxWait
	set := setOf(t, "a", "1")
	feed.Set(set)
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() {
			change, err := client.Poll(t.Context(), mirror.Version(set))
			if err != nil || change == nil || len(change.Files) != 1 || change.Files[0].Text != "2" {
				t.Errorf("the change is %v, %v", change, err)
			}
		})
	}
	for range 10 {
		if version := <-acked; version != mirror.Version(set) {
			t.Errorf("version %s is acknowledged", version)
		}
	}
	feed.Set(set)
	feed.Set(setOf(t, "a", "2"))
	group.Wait()
}

// TestWaitForTheFirst polls before there are files.
func TestWaitForTheFirst(t *testing.T) {
	feed := new(mirror.Feed)
	client := serve(t, feed)
	_, err := client.Poll(t.Context(), "")
	refused, ok := errors.AsType[*mirror.Error](err)
	if !ok || refused.Code != http.StatusServiceUnavailable || refused.RetryAfter != time.Second || refused.Message == "" {
		t.Fatalf("without files the answer is %v", err)
	}
	client.Wait = time.Minute
	answered := make(chan error, 1)
	go func() {
		change, err := client.Poll(t.Context(), "")
		if err == nil && change == nil {
			err = errors.New("there is none")
		}
		answered <- err
	}()
	feed.Set(setOf(t, "a", "1"))
	if err := <-answered; err != nil {
		t.Errorf("the first change: %v", err)
	}
}

// TestOthers lets a client refuse versions, apply one, and go back.
func TestOthers(t *testing.T) {
	var mu sync.Mutex
	var acked []string
	var rejected []mirror.Status
	feed := &mirror.Feed{
		Acked:    func(version string) { mu.Lock(); defer mu.Unlock(); acked = append(acked, version) },
		Rejected: func(status mirror.Status) { mu.Lock(); defer mu.Unlock(); rejected = append(rejected, status) },
	}
	client := serve(t, feed)
	good, bad := setOf(t, "a", "1"), setOf(t, "a", "bad")

	// The first version can't be used.
	feed.Set(bad)
	if _, change := follow(t, client, mirror.Set{}, mirror.Version(bad)); change != nil {
		t.Errorf("the refused version is sent: %+v", change)
	}
	if len(acked) != 0 {
		t.Errorf("%q are acknowledged", acked)
	}
	feed.Set(good)
	has, change := follow(t, client, mirror.Set{}, mirror.Version(bad))
	if change == nil || mirror.Version(has) != mirror.Version(good) {
		t.Fatalf("the change is %+v", change)
	}

	// A later one can't.
	feed.Set(bad)
	if _, change = follow(t, client, has); change == nil || change.Base != mirror.Version(good) {
		t.Fatalf("the change is %+v", change)
	}
	for _, status := range []mirror.Status{{Version: mirror.Version(bad), Error: "it is bad"}, {Version: "of nobody", Error: "?"}} {
		if err := client.Report(t.Context(), status); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]mirror.Status{{Version: mirror.Version(bad), Error: "it is bad"}}, rejected); diff != "" {
		t.Errorf("rejected (-want +got):\n%s", diff)
	}
	if _, change := follow(t, client, has, mirror.Version(bad)); change != nil {
		t.Errorf("the refused version is sent: %+v", change)
	}

	// The Feed returns to the version in use while the client waits: the client must confirm it.
	client.Wait = mirror.MaxWait
	mu.Lock()
	before := len(acked)
	mu.Unlock()
	answered := make(chan error, 1)
	go func() {
		change, err := client.Poll(t.Context(), mirror.Version(good), mirror.Version(bad))
		if change != nil {
			err = errors.New("a change is sent")
		}
		answered <- err
	}()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		mu.Lock()
		waits := len(acked) > before
		mu.Unlock()
		if waits || time.Now().After(deadline) {
			break
		}
	}
	feed.Set(good)
	if err := <-answered; err != nil {
		t.Errorf("after the return to the version in use: %v", err)
	}
}

// TestSent checks the numbers that Sent reports.
func TestSent(t *testing.T) {
	type sent struct {
		version      string
		files, bytes int
	}
	reports := make(chan sent, 10)
	feed := &mirror.Feed{Sent: func(version string, files, bytes int) { reports <- sent{version, files, bytes} }}
	client := serve(t, feed)
	first, second := setOf(t, "a", "1", "b", "2"), setOf(t, "a", strings.Repeat("x", 1000))
	feed.Set(first)
	has, _ := follow(t, client, mirror.Set{})
	feed.Set(second)
	follow(t, client, has)
	if got := <-reports; got.version != mirror.Version(first) || got.files != 2 || got.bytes < 10 {
		t.Errorf("sent %+v", got)
	}
	if got := <-reports; got.version != mirror.Version(second) || got.files != 2 || got.bytes < 1000 || got.bytes > 1200 {
		t.Errorf("sent %+v", got)
	}
}

// statusOf returns a Status as JSON with that many bytes.
func statusOf(size int) string {
	const begin, end = `{"version": "x", "error": "`, `"}`
	return begin + strings.Repeat("y", size-len(begin)-len(end)) + end
}

// TestRequests checks the answers to requests that a Client does not send.
func TestRequests(t *testing.T) {
	feed := new(mirror.Feed)
	set := setOf(t, "a", "1")
	feed.Set(set)
	tag := `"` + mirror.Version(set) + `"`
	for name, test := range map[string]struct {
		method, body string
		header       map[string]string
		code         int
	}{
		"get":              {method: "GET", code: 200},
		"weak tag":         {method: "GET", header: map[string]string{"If-None-Match": "W/" + tag}, code: 304},
		"tag in a list":    {method: "GET", header: map[string]string{"If-None-Match": `"x", ` + tag}, code: 304},
		"no tag":           {method: "GET", header: map[string]string{"If-None-Match": mirror.Version(set)}, code: 400},
		"empty tag":        {method: "GET", header: map[string]string{"If-None-Match": `""`}, code: 400},
		"any tag":          {method: "GET", header: map[string]string{"If-None-Match": "*"}, code: 400},
		"eight tags":       {method: "GET", header: map[string]string{"If-None-Match": strings.Repeat(`"x",`, 7) + tag}, code: 304},
		"nine tags":        {method: "GET", header: map[string]string{"If-None-Match": strings.Repeat(`"x",`, 8) + tag}, code: 400},
		"many tags":        {method: "GET", header: map[string]string{"If-None-Match": strings.Repeat(`"x",`, 50) + `"x"`}, code: 400},
		"wait is no time":  {method: "GET", header: map[string]string{"If-None-Match": tag, "Prefer": "wait=soon"}, code: 304},
		"wait is negative": {method: "GET", header: map[string]string{"If-None-Match": tag, "Prefer": "wait=-1"}, code: 304},
		"other preference": {method: "GET", header: map[string]string{"If-None-Match": tag, "Prefer": `return=minimal, wait="0"; x=y, wait=100`}, code: 304},
		"head":             {method: "HEAD", code: 200},
		"head with tag":    {method: "HEAD", header: map[string]string{"If-None-Match": tag, "Prefer": "wait=100"}, code: 304},
		"put":              {method: "PUT", code: 405},
		"post":             {method: "POST", body: `{"version": "x", "error": "y"}`, header: map[string]string{"Content-Type": mirror.StatusType}, code: 204},
		"post no type":     {method: "POST", body: `{"version": "x", "error": "y"}`, code: 415},
		"post no status":   {method: "POST", body: `[]`, header: map[string]string{"Content-Type": mirror.StatusType}, code: 400},
		"post no version":  {method: "POST", body: `{}`, header: map[string]string{"Content-Type": mirror.StatusType}, code: 400},
		"post of 64 KiB":   {method: "POST", body: statusOf(64 << 10), header: map[string]string{"Content-Type": mirror.StatusType}, code: 204},
		"post longer":      {method: "POST", body: statusOf(64<<10 + 1), header: map[string]string{"Content-Type": mirror.StatusType}, code: 413},
		"post too long":    {method: "POST", body: `{"version": "` + strings.Repeat("x", 1<<20) + `"}`, header: map[string]string{"Content-Type": mirror.StatusType}, code: 413},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(test.method, "/", strings.NewReader(test.body))
			for key, value := range test.header {
				r.Header.Set(key, value)
			}
			w := httptest.NewRecorder()
			feed.ServeHTTP(w, r)
			if w.Code != test.code {
				t.Errorf("the answer is %d %s", w.Code, w.Body)
			}
			if (w.Code == 200 || w.Code == 304) && w.Header().Get("ETag") != tag {
				t.Errorf("the tag is %s", w.Header().Get("ETag"))
			}
			if test.method == "HEAD" && w.Body.Len() > 0 {
				t.Errorf("the body is %s", w.Body)
			}
		})
	}
}

// TestEndOfContext ends a wait with the request's context.
func TestEndOfContext(t *testing.T) {
	waits := make(chan struct{})
	feed := &mirror.Feed{Acked: func(string) { close(waits) }}
	set := setOf(t, "a", "1")
	feed.Set(set)
	ctx, cancel := context.WithCancel(t.Context())
	r := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)
	r.Header.Set("If-None-Match", `"`+mirror.Version(set)+`"`)
	r.Header.Set("Prefer", "wait=300")
	go func() {
		<-waits
		cancel()
	}()
	w := httptest.NewRecorder()
	feed.ServeHTTP(w, r)
	if w.Code != http.StatusNotModified || w.Header().Get("Connection") != "close" {
		t.Errorf("the answer is %d %v", w.Code, w.Header())
	}
}

// TestClientBounds sends invalid answers to clients.
func TestClientBounds(t *testing.T) {
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"said to be too long": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(mirror.MaxChange+1))
		}, "more than 64 MiB"},
		"no JSON": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, "an invalid change"},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"version": "x"`) }, "an invalid change"},
		"teapot": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no\n\tcoffee"+strings.Repeat("x", 10000), http.StatusTeapot)
		}, "the server answers 418: no coffeexxx"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(test.handler)
			defer server.Close()
			client := mirror.Client{URL: server.URL, Wait: -1}
			_, err := client.Poll(t.Context(), "")
			if err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 1000 {
				t.Errorf("the error is %v", err)
			}
			if name != "teapot" {
				return
			}
			if err := client.Report(t.Context(), mirror.Status{Version: "x"}); err == nil || !strings.Contains(err.Error(), "418") {
				t.Errorf("the report's error is %v", err)
			}
		})
	}
}

// TestReport checks that the end of a long error is sent.
func TestReport(t *testing.T) {
	var got mirror.Status
	feed := &mirror.Feed{Rejected: func(status mirror.Status) { got = status }}
	set := setOf(t, "a", "1")
	feed.Set(set)
	client := serve(t, feed)
	if err := client.Report(t.Context(), mirror.Status{Version: mirror.Version(set), Error: strings.Repeat("\xff<€>", 1<<20) + "the end"}); err != nil {
		t.Fatal(err)
	}
	if got.Version != mirror.Version(set) || len(got.Error) > 10<<10 || !strings.HasSuffix(got.Error, "<€>the end") {
		t.Errorf("the status is of %q with %d bytes that end in %q", got.Version, len(got.Error), got.Error[max(len(got.Error)-20, 0):])
	}
}
