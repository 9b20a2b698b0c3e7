package offline_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/offline"
)

// writer writes a pod with random probes and hooks in a random style.
type writer struct {
	*rand.Rand
	out strings.Builder
	// wide says that lists are indented.
	wide bool
}

// scalar returns a string without quotes or with some.
func (w *writer) scalar(s string) string {
	return fmt.Sprintf([]string{"%s", "'%s'", `"%s"`}[w.IntN(3)], s)
}

// comment returns the end of a line.
func (w *writer) comment() string {
	if w.IntN(6) == 0 {
		return "   # as the team likes it\n"
	}
	return "\n"
}

// entries writes the entries of a mapping in any order.
func (w *writer) entries(indent int, entries ...string) {
	w.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
	for _, e := range entries {
		if w.IntN(8) == 0 {
			fmt.Fprintf(&w.out, "%*s# above\n", indent, "")
		}
		fmt.Fprintf(&w.out, "%*s%s", indent, "", e)
		if !strings.HasSuffix(e, "\n") {
			w.out.WriteString(w.comment())
		}
	}
}

// headers returns an entry with headers.
func (w *writer) headers(indent int) string {
	if w.IntN(4) == 0 {
		return fmt.Sprintf("httpHeaders: [{name: %s, value: %s}]", w.scalar("X-A"), w.scalar("b"))
	}
	if w.wide || w.IntN(3) == 0 {
		indent += 2
	}
	out := "httpHeaders:" + w.comment()
	for range 1 + w.IntN(2) {
		out += fmt.Sprintf("%*s- name: %s%s%*s  value: %s%s", indent, "", w.scalar("Cookie"), w.comment(), indent, "", w.scalar("shop_session-id=x"), w.comment())
	}
	return out
}

// handler writes a probe's or hook's action.
func (w *writer) handler(indent int) {
	port := []string{"8080", "web", `"web"`, "'web'"}[w.IntN(4)]
	switch w.IntN(6) {
	case 0:
		fmt.Fprintf(&w.out, "%*shttpGet: {path: %s, port: %s, scheme: %s, httpHeaders: [{name: %s, value: a}]}\n",
			indent, "", w.scalar("/x"), port, w.scalar("HTTPS"), w.scalar("X"))
		return
	case 1:
		fmt.Fprintf(&w.out, "%*stcpSocket: {port: %s}%s", indent, "", port, w.comment())
		return
	case 2:
		fmt.Fprintf(&w.out, "%*stcpSocket:%s", indent, "", w.comment())
		w.entries(indent+2, "port: "+port, "host: "+w.scalar("127.0.0.1"))
		return
	}
	fmt.Fprintf(&w.out, "%*shttpGet:%s", indent, "", w.comment())
	entries := []string{"path: " + w.scalar("/healthz"), "port: " + port, "scheme: " + w.scalar([]string{"HTTP", "HTTPS"}[w.IntN(2)])}
	if w.IntN(3) > 0 {
		entries = append(entries, w.headers(indent+2))
	}
	if w.IntN(3) == 0 {
		entries = append(entries, "host: "+w.scalar("localhost"))
	}
	w.entries(indent+2, entries...)
}

func (w *writer) pod() string {
	at := 2
	if w.wide {
		at = 4
	}
	w.out.WriteString("apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n  containers:\n")
	for n := range 1 + w.IntN(3) {
		fmt.Fprintf(&w.out, "%*s- name: app%d\n%*s  image: %s\n%*s  ports: [{name: web, containerPort: 80}]\n", at, "", n, at, "", w.scalar("app:1"), at, "")
		for _, probe := range []string{"livenessProbe", "readinessProbe", "startupProbe"} {
			if w.IntN(2) == 0 {
				continue
			}
			fmt.Fprintf(&w.out, "%*s  %s:%s", at, "", probe, w.comment())
			before := w.IntN(2) == 0
			if before {
				fmt.Fprintf(&w.out, "%*s    periodSeconds: 5%s", at, "", w.comment())
			}
			w.handler(at + 4)
			if !before {
				fmt.Fprintf(&w.out, "%*s    failureThreshold: 3%s", at, "", w.comment())
			}
		}
	}
	return w.out.String()
}

// TestRandomProbesComeBack injects and uninjects pods whose probes are written in many styles.
// Every byte must come back.
func TestRandomProbesComeBack(t *testing.T) {
	engine := realEngine(t, offline.Parse(nil))
	round := func(text string) (injected, back []byte) {
		t.Helper()
		injected = must(t)(offline.InjectFiles(t.Context(), engine, []offline.Source{{Name: "in.yaml", Data: []byte(text)}}, offline.Options{})).Outputs[0].Data
		uninject := []offline.Source{{Name: "in.yaml", Data: injected}}
		return injected, must(t)(offline.UninjectFiles(t.Context(), inject.Uninject, uninject)).Outputs[0].Data
	}
	for seed := range uint64(120) {
		w := &writer{Rand: rand.New(rand.NewPCG(seed, 1))}
		w.wide = w.IntN(2) == 0
		text := w.pod()
		injected, back := round(text)
		if again, _ := round(string(injected)); !bytes.Equal(again, injected) {
			t.Errorf("seed %d: a second injection changes the file:\n%s", seed, cmp.Diff(string(injected), string(again)))
		}
		if diff := cmp.Diff(text, string(back)); diff != "" {
			t.Fatalf("seed %d: the text differs (-before +after):\n%s", seed, diff)
		}
	}
	const usual = `apiVersion: v1
kind: Pod
metadata:
  name: p
spec:
  containers:
  - image: app:1
    livenessProbe:
      httpGet:
        path: /healthz
        port: 8080
    name: app
    readinessProbe:
      tcpSocket:
        port: 80
`
	if injected, back := round(usual); bytes.Contains(injected, []byte(`"text":{`)) || string(back) != usual {
		t.Errorf("of a file as kubectl writes it, parts are recorded:\n%s", injected)
	}
}
