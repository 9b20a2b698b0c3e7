package rollout

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

func setOf(t testing.TB, namesAndTexts ...string) mirror.Set {
	t.Helper()
	var files []*mirror.File
	for i := 0; i < len(namesAndTexts); i += 2 {
		f, err := mirror.NewFile(namesAndTexts[i], namesAndTexts[i+1])
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return mirror.NewSet(files...)
}

// filled returns a folder with two files.
func filled(t testing.TB) (*folder, mirror.Set) {
	t.Helper()
	f, _, err := openFolder(filepath.Join(t.TempDir(), "deep/repo"))
	if err != nil {
		t.Fatal(err)
	}
	set := setOf(t, "a", "1", "b/c", "2")
	place(t, f, set)
	return f, set
}

func place(t testing.TB, f *folder, set mirror.Set) {
	t.Helper()
	staged, err := f.stage(set)
	if err == nil {
		err = f.swap(staged, set)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestFolder(t *testing.T) {
	f, first := filled(t)
	again, why, err := openFolder(f.link)
	if err != nil || why != nil || mirror.Version(again.set) != mirror.Version(first) {
		t.Fatalf("the folder holds %v, %v, %v", again.set.Names(), why, err)
	}
	// An agent killed at this point leaves a staged version behind.
	if _, err := again.stage(setOf(t, "a", "half")); err != nil {
		t.Fatal(err)
	}
	if again, _, err = openFolder(f.link); err != nil || mirror.Version(again.set) != mirror.Version(first) {
		t.Fatalf("the folder holds %v, %v", again.set.Names(), err)
	}
	info := func(name string) os.FileInfo {
		info, err := os.Stat(filepath.Join(f.link, name))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	before := info("b/c")
	for _, text := range []string{"2", "3", "4"} {
		place(t, again, setOf(t, "a", text, "b/c", "2", "new", text))
	}
	if !os.SameFile(before, info("b/c")) {
		t.Error("a file that has not changed was written again")
	}
	if text, err := os.ReadFile(filepath.Join(f.link, "a")); string(text) != "4" {
		t.Errorf("a holds %q, %v", text, err)
	}
	place(t, again, setOf(t, "a", "4"))
	if _, err := os.Stat(filepath.Join(f.link, "b")); !os.IsNotExist(err) {
		t.Errorf("what is gone is there: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(f.link), ".repo-*")); err != nil || len(left) != 2 {
		t.Errorf("there are %v, %v, want this version and the one before", left, err)
	}
}

// TestFolderThatIsNotGood damages a good folder in ways that must prevent its use.
func TestFolderThatIsNotGood(t *testing.T) {
	for name, change := range map[string]func(f *folder) error{
		"a file is changed": func(f *folder) error { return os.WriteFile(filepath.Join(f.link, "a"), []byte("x"), 0o644) },
		"a file is gone":    func(f *folder) error { return os.Remove(filepath.Join(f.link, "a")) },
		"a file is new":     func(f *folder) error { return os.WriteFile(filepath.Join(f.link, "x"), nil, 0o644) },
		"a hidden file":     func(f *folder) error { return os.WriteFile(filepath.Join(f.link, ".x"), nil, 0o644) },
		"not UTF-8":         func(f *folder) error { return os.WriteFile(filepath.Join(f.link, "a"), []byte{0xff}, 0o644) },
		"a link": func(f *folder) error {
			name := filepath.Join(f.link, "a")
			if err := os.Rename(name, filepath.Join(filepath.Dir(f.link), "a")); err != nil {
				return err
			}
			return os.Symlink(filepath.Join(filepath.Dir(f.link), "a"), name)
		},
		"nothing there": func(f *folder) error { return os.RemoveAll(f.versionDir(f.name)) },
		"elsewhere": func(f *folder) error {
			if err := os.Remove(f.link); err != nil {
				return err
			}
			return os.Symlink(f.versionDir(f.name), f.link)
		},
		"another version's name": func(f *folder) error {
			other := f.prefix + strings.Repeat("0", 32) + "-1"
			if err := os.Rename(f.versionDir(f.name), f.versionDir(other)); err != nil {
				return err
			}
			if err := os.Remove(f.link); err != nil {
				return err
			}
			return os.Symlink(other, f.link)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := filled(t)
			if err := change(f); err != nil {
				t.Fatal(err)
			}
			again, why, err := openFolder(f.link)
			if err != nil || why == nil || again.name != "" || again.set.Len() != 0 {
				t.Fatalf("the folder is used: %+v, %v, %v", again, why, err)
			}
			set := setOf(t, "a", "new")
			place(t, again, set)
			if again, why, err = openFolder(f.link); err != nil || why != nil || mirror.Version(again.set) != mirror.Version(set) {
				t.Errorf("the folder cannot be used again: %v, %v", why, err)
			}
		})
	}
}

func TestFolderThatIsNotOurs(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := openFolder(dir); err == nil || !strings.Contains(err.Error(), "mirror.dir "+dir+" already exists") {
		t.Errorf("somebody's folder: %v", err)
	}
}

// FuzzFolder checks that no folder is used whose content does not match its name.
func FuzzFolder(f *testing.F) {
	f.Add(".repo-1f0c-1", "a", "1")
	f.Add(".repo-"+mirror.Version(setOf(f, "a", "1"))+"-1", "a", "1")
	f.Add(".repo-"+mirror.Version(setOf(f, "a", "1"))+"-", "a", "2")
	f.Add("../x", "a", "1")
	f.Fuzz(func(t *testing.T, name, file, text string) {
		dir := t.TempDir()
		inside := filepath.Join(dir, filepath.Join("/", name))
		if os.MkdirAll(inside, 0o755) != nil || os.WriteFile(filepath.Join(inside, filepath.Join("/", file)), []byte(text), 0o644) != nil ||
			os.Symlink(name, filepath.Join(dir, "repo")) != nil {
			return
		}
		opened, why, err := openFolder(filepath.Join(dir, "repo"))
		if err != nil {
			t.Fatal(err)
		}
		if why == nil && (!strings.HasPrefix(name, ".repo-"+mirror.Version(opened.set)+"-") || opened.set.Len() > 1) {
			t.Errorf("%q with %q is used as %v", name, file, opened.set.Names())
		}
	})
}
