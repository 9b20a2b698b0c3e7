package mirror_test

import (
	"encoding/json"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// FuzzApply applies arbitrary changes: the result has the stated version and only valid
// files.
func FuzzApply(f *testing.F) {
	base := setOf(f, "a", "1", "b/c", "2")
	next := setOf(f, "a", "1", "d", "3")
	for _, change := range []mirror.Change{
		{Version: mirror.Version(next), Base: mirror.Version(base), Files: []*mirror.File{{Name: "d", Text: "3"}}, Gone: []string{"b/c"}},
		{Version: mirror.Version(next), Files: []*mirror.File{{Name: "a", Text: "1"}, {Name: "d", Text: "3"}}},
		{Version: mirror.Version(mirror.Set{})},
		{Version: "another", Files: []*mirror.File{{Name: "a", Text: "1"}}},
		{Version: mirror.Version(next), Files: []*mirror.File{nil}},
		{Version: mirror.Version(next), Files: []*mirror.File{{Name: "../d", Text: "3"}}},
	} {
		content, err := json.Marshal(change)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		var change mirror.Change
		if json.Unmarshal(content, &change) != nil {
			return
		}
		// With the right version, so that the remaining checks are reached too.
		for _, version := range []string{change.Version, honest(base, change)} {
			change.Version = version
			got, err := change.Apply(base)
			if err != nil {
				continue
			}
			if mirror.Version(got) != version {
				t.Errorf("the result is %s, not %s", mirror.Version(got), version)
			}
			for name, file := range got.All() {
				if !filepath.IsLocal(name) || path.Clean(name) != name || strings.HasPrefix(path.Base(name), ".") || name != file.Name || !utf8.ValidString(file.Text) {
					t.Errorf("%q is no name or has no text", name)
				}
			}
		}
	})
}

// honest returns the version that results from the change.
func honest(base mirror.Set, change mirror.Change) string {
	files := make(map[string]*mirror.File)
	if change.Base != "" {
		files = maps.Collect(base.All())
	}
	for _, f := range change.Files {
		if f == nil {
			continue
		}
		if file, err := mirror.NewFile(f.Name, f.Text); err == nil {
			files[f.Name] = file
		}
	}
	for _, name := range change.Gone {
		delete(files, name)
	}
	return mirror.Version(mesh.TableOf(files))
}

// FuzzFeed lets a client follow a Feed through random sets: both have the same files,
// whatever the client refuses in between.
func FuzzFeed(f *testing.F) {
	f.Add([]byte("abcabd"))
	f.Add([]byte{0, 255, 7, 7, 128, 3, 3, 3, 9})
	f.Fuzz(func(t *testing.T, steps []byte) {
		if len(steps) > 64 {
			return
		}
		feed := new(mirror.Feed)
		client := serve(t, feed)
		var has, now mirror.Set
		var refused []string
		for _, step := range steps {
			// Each bit stands for a file, and the two highest change their texts.
			var files []string
			for bit := range 6 {
				if step&(1<<bit) != 0 {
					files = append(files, "f"+string(rune('0'+bit)), strings.Repeat("x", int(step>>6)))
				}
			}
			now = setOf(t, files...)
			feed.Set(now)
			next, change := follow(t, client, has, refused...)
			switch {
			case change == nil:
				if v := mirror.Version(now); v != mirror.Version(has) && !slices.Contains(refused, v) {
					t.Fatalf("the client does not get %s", v)
				}
			case mirror.Version(next) != mirror.Version(now):
				t.Fatalf("the client has %v, not %v", texts(next), texts(now))
			case step%3 == 0:
				refused = []string{change.Version}
			default:
				has, refused = next, nil
			}
		}
	})
}
