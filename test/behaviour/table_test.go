package behaviour_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/internal/lab"
	"github.com/outrigger-mesh/outrigger/internal/localmesh"
)

// row is a sentence about the mesh.
type row struct {
	// name is the row's in the table, and what a reader looks for.
	name string
	// says is the sentence.
	says string
	// proves asks the mesh. It leaves the town as it found it.
	proves func(t *testing.T, w *world)
}

// chapter is rows that belong together.
type chapter struct {
	name string
	rows []row
}

func chapters() []chapter {
	return []chapter{
		{"Who may call", access},
		{"On the wire", wire},
		{"Protocols", protocols},
		{"Traffic", traffic},
		{"In and out of the mesh", edge},
		{"Observability", observability},
		{"When things change or end", lifecycle},
	}
}

// pair is the classes of a client's proxy and a server's.
type pair struct{ client, server string }

func (p pair) String() string { return p.client + " to " + p.server }

// pairs are those that the table is run for.
var pairs = []pair{{"envoy", "envoy"}}

func TestMain(m *testing.M) {
	lab.Enter()
	os.Exit(m.Run())
}

// TestBehaviour runs the table, and holds that docs/behaviour.md says what it found.
func TestBehaviour(t *testing.T) {
	if err := lab.Available(); errors.Is(err, lab.ErrUnavailable) {
		t.Skip("SKIPPED: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	programs, err := localmesh.BuildPrograms(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if programs.Envoy == "" {
		t.Skip("SKIPPED: ", localmesh.ErrNoEnvoy)
	}
	found := map[pair]map[string]string{}
	for _, p := range pairs {
		found[p] = map[string]string{}
		t.Run(strings.ReplaceAll(p.String(), " ", "-"), func(t *testing.T) {
			w := newWorld(t, programs, p.client, p.server)
			for _, c := range chapters() {
				for _, r := range c.rows {
					t.Run(r.name, func(t *testing.T) {
						r.proves(t, w)
					})
					found[p][r.name] = "yes"
				}
			}
		})
	}
	if !t.Failed() && !filtered() {
		checkDoc(t, found)
	}
}

// filtered reports whether only some rows were asked for.
func filtered() bool { return strings.Contains(flag.Lookup("test.run").Value.String(), "/") }

var docFile = filepath.Join("..", "..", "docs", "behaviour.md")

// checkDoc compares the page with what was found, or writes it with UPDATE=1.
func checkDoc(t *testing.T, found map[pair]map[string]string) {
	t.Helper()
	var page bytes.Buffer
	page.WriteString(`# What the mesh does

Each row is a test. It runs on a lab of network namespaces with the real controller,
the real agent and real proxies, and asks by requests. ` + "`go test ./test/behaviour`" + `
runs the table and holds this page, which ` + "`UPDATE=1`" + ` writes.

`)
	for _, c := range chapters() {
		fmt.Fprintf(&page, "## %s\n\n| | |", c.name)
		for _, p := range pairs {
			fmt.Fprintf(&page, " %s |", p)
		}
		page.WriteString("\n|---|---|" + strings.Repeat("---|", len(pairs)) + "\n")
		for _, r := range c.rows {
			fmt.Fprintf(&page, "| %s | %s |", r.name, r.says)
			for _, p := range pairs {
				fmt.Fprintf(&page, " %s |", found[p][r.name])
			}
			page.WriteString("\n")
		}
		page.WriteString("\n")
	}
	content := bytes.TrimRight(page.Bytes(), "\n")
	content = append(content, '\n')
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(docFile, content, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	is, err := os.ReadFile(docFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(is, content) {
		t.Errorf("docs/behaviour.md does not say what this run found; run UPDATE=1 go test ./test/behaviour")
	}
}
