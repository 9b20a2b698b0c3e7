package haproxy

import ("testing";"os";"path/filepath")

func TestDump(t *testing.T) {
	dir := os.Getenv("DUMP")
	if dir == "" { t.Skip() }
	for name, f := range fixtures() {
		d := filepath.Join(dir, name)
		os.MkdirAll(d, 0o755)
		writeExampleIdentity(d, store)
		if _, err := writeConfig(d, f.view()); err != nil { t.Error(err) }
	}
}
