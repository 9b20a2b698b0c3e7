package mirror

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var sameChange = []cmp.Option{cmpopts.IgnoreUnexported(File{}), cmpopts.EquateEmpty()}

// FuzzReadChange reads arbitrary bytes: with the same result as encoding/json, and a result
// that is written and read again does not change.
func FuzzReadChange(f *testing.F) {
	for _, text := range []string{
		`{"version": "v"}`, `{"version": "v", "base": "b", "files": [{"name": "a", "text": "<\u2028>"}, null], "gone": ["x"]}`,
		`{"gone": ["x", "y"], "later": {"a": [1]}, "files": [], "version": "v"}`, `{"files": {}}`, `[]`, `null`, `{"files": [{"name": "a"}`, ``,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := readChange(bytes.NewReader(text))
		if err != nil {
			return
		}
		var written bytes.Buffer
		if err := writeChange(&written, *got); err != nil {
			t.Fatal(err)
		}
		var plain Change
		if err := json.Unmarshal(written.Bytes(), &plain); err != nil {
			t.Fatalf("%s is not JSON: %v", &written, err)
		}
		if diff := cmp.Diff(*got, plain, sameChange...); diff != "" {
			t.Errorf("%s (-written +read by encoding/json):\n%s", &written, diff)
		}
		again, err := readChange(&written)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, again, sameChange...); diff != "" {
			t.Errorf("-first +again:\n%s", diff)
		}
	})
}

// TestTooLong lets a server send files without end.
func TestTooLong(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := io.WriteString(w, `{"files": [{}`)
		for err == nil {
			_, err = io.WriteString(w, `, {"name": "x", "text": "`+strings.Repeat("x", 1<<10)+`"}`)
		}
	}))
	defer server.Close()
	client := Client{URL: server.URL, Wait: -1, maxChange: 1 << 20}
	if _, err := client.Poll(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "which is refused") {
		t.Errorf("the error is %v", err)
	}
}
