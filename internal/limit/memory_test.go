package limit

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMemoryLimit(t *testing.T) {
	dir := t.TempDir()
	second := filepath.Join(dir, "memory.limit_in_bytes")
	if err := os.WriteFile(second, []byte("1024\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	first := filepath.Join(dir, "memory.max")
	if got := memoryLimit(first, second); got != 1024 {
		t.Errorf("by the second file the limit is %d", got)
	}
	for content, want := range map[string]int64{"268435456\n": 268435456, "max\n": 0, "": 0} {
		if err := os.WriteFile(first, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := memoryLimit(first, second); got != want {
			t.Errorf("%q is a limit of %d, want %d", content, got, want)
		}
	}
}
