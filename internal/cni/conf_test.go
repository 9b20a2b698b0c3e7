package cni

import (
	"encoding/json"
	"strings"
	"testing"
)

const ptp = `{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {
      "type": "ptp",
      "ipam": {"type": "host-local"}
    }
  ]
}
`

func TestEntry(t *testing.T) {
	for name, test := range map[string]struct{ before, after string }{
		"a list of one": {ptp, strings.Replace(ptp, "    }\n  ]", "    },\n    "+entry+"\n  ]", 1)},
		"a list on one line": {
			`{"name":"a","plugins":[{"type":"x"},{"type":"y"}],"cniVersion":"1.1.0"}`,
			`{"name":"a","plugins":[{"type":"x"},{"type":"y"},` + entry + `],"cniVersion":"1.1.0"}`,
		},
		"a comma with space": {
			"{\"plugins\" : [ {\"type\":\"x\"} ,\t{\"type\":\"y\", \"a\": \"],[{\"} ] }",
			"{\"plugins\" : [ {\"type\":\"x\"} ,\t{\"type\":\"y\", \"a\": \"],[{\"},\t" + entry + " ] }",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := withEntry([]byte(test.before))
			if err != nil || string(got) != test.after {
				t.Fatalf("withEntry: %v\n%s\nwant\n%s", err, got, test.after)
			}
			if again, err := withEntry(got); err != nil || string(again) != test.after {
				t.Errorf("a second time: %v\n%s", err, again)
			}
			if back, err := withoutEntry(got); err != nil || string(back) != test.before {
				t.Errorf("withoutEntry: %v\n%s\nwant\n%s", err, back, test.before)
			}
		})
	}
}

// TestEntryOfAnotherVersion checks that an old entry is updated, that duplicates are
// removed, and that plug-ins which others added after it keep their places.
func TestEntryOfAnotherVersion(t *testing.T) {
	for name, test := range map[string]struct{ before, after string }{
		"an older one": {
			`{"plugins":[{"type":"x"},{"type":"outrigger-cni"}]}`,
			`{"plugins":[{"type":"x"},` + entry + `]}`,
		},
		"two": {
			`{"plugins":[{"type":"x"},` + entry + `,{"type":"y"},` + entry + `]}`,
			`{"plugins":[{"type":"x"},{"type":"y"},` + entry + `]}`,
		},
		"before the network": {
			`{"plugins":[` + entry + `, {"type":"x"}]}`,
			`{"plugins":[{"type":"x"},` + entry + `]}`,
		},
		"others after it": {
			`{"plugins":[{"type":"x"},` + entry + `,{"type":"y"}]}`,
			`{"plugins":[{"type":"x"},` + entry + `,{"type":"y"}]}`,
		},
	} {
		if got, err := withEntry([]byte(test.before)); err != nil || string(got) != test.after {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, test.after)
		}
	}
}

func TestBadLists(t *testing.T) {
	for _, text := range []string{
		"", "null", "[]", "{}", "{", `{"plugins":{}}`, `{"plugins":[]}`, `{"plugins":[{}]}`, `{"plugins":[1]}`,
		`{"plugins":[` + entry + `]}`, `{"plugins":[{"type":"x"}]} {}`, `{"plugins":[{"type":"x"}],"plugins":[{"type":"y"}]}`,
	} {
		if got, err := withEntry([]byte(text)); err == nil {
			t.Errorf("%s: no error, but %s", text, got)
		}
	}
}

func FuzzEntry(f *testing.F) {
	f.Add([]byte(ptp))
	f.Add([]byte(`{"plugins":[{"type":"x"},` + entry + `,{"type":"y"}]}`))
	f.Add([]byte(`{"plugins":[` + entry + ` , {"type":"x"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		with, err := withEntry(text)
		if err != nil {
			return
		}
		if !json.Valid(with) {
			t.Fatalf("no JSON:\n%s", with)
		}
		if again, err := withEntry(with); err != nil || string(again) != string(with) {
			t.Errorf("a second time: %v\n%s\n%s", err, with, again)
		}
		without, err := withoutEntry(with)
		if err != nil {
			t.Fatal(err)
		}
		if before, err := withoutEntry(text); err != nil || string(before) != string(without) {
			t.Errorf("not as it was: %v\n%s\n%s", err, before, without)
		}
	})
}
