package behaviour

import (
	"bytes"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// logs store the output of the containers.
type logs struct {
	mu   sync.Mutex
	text map[string]*bytes.Buffer
}

func (l *logs) writer(pod, container string) io.Writer {
	return logWriter{l, pod + "/" + container}
}

type logWriter struct {
	*logs
	name string
}

func (w logWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.text[w.name] == nil {
		w.text[w.name] = new(bytes.Buffer)
	}
	return w.text[w.name].Write(p)
}

// of returns the output of a container.
func (l *logs) of(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text[name] == nil {
		return ""
	}
	return l.text[name].String()
}

// dump logs the end of each container's output. 'go test -artifacts' keeps all of it.
func (l *logs) dump(t *testing.T) {
	t.Helper()
	folder := t.ArtifactDir()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(l.text)) {
		text := l.text[name].String()
		if err := os.WriteFile(filepath.Join(folder, strings.ReplaceAll(name, "/", "_")+".log"), []byte(text), 0o600); err != nil {
			t.Log(err)
		}
		lines := strings.Split(strings.TrimSpace(text), "\n")
		lines = lines[max(0, len(lines)-5):]
		for i, line := range lines {
			lines[i] = line[:min(len(line), 1000)]
		}
		t.Logf("%s:\n%s", name, strings.Join(lines, "\n"))
	}
}
