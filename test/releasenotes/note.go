package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	// folder has a folder for each release, named by its version, with the notes in it.
	folder = "releasenotes"
	page   = "CHANGELOG.md"
)

// note is one change that users notice, as a file says it.
type note struct {
	// Kind is one of kinds.
	Kind string `json:"kind"`
	// Area is one of areas.
	Area string `json:"area"`
	// Issue has numbers of issues or addresses of reports; it may be empty.
	Issue []string `json:"issue,omitempty"`
	// Note is what changed, in Markdown, for somebody who runs the mesh.
	Note string `json:"note"`
	// Upgrade is what to do before or after an upgrade; "" means nothing.
	Upgrade string `json:"upgrade,omitempty"`
}

// kinds are the kinds of changes with their headings, in the order of the page.
var kinds = []struct{ name, heading string }{
	{"security", "Security"},
	{"feature", "New"},
	{"change", "Changed"},
	{"deprecation", "Deprecated"},
	{"removal", "Removed"},
	{"fix", "Fixed"},
}

// areas are the parts of the mesh that a note can be about.
var areas = []string{"access", "agent", "cli", "drivers", "gateway-api", "identity", "injection", "install", "observability", "performance", "traffic"}

// release is a version with its notes in the order of the page.
type release struct {
	version string
	notes   []note
}

// read returns the releases of a folder, the newest first. Its error names each file that is
// not a note, with the reason.
func read(dir fs.FS) ([]release, error) {
	files, err := fs.Glob(dir, "*/*")
	if err != nil {
		return nil, err
	}
	byVersion := make(map[string][]note)
	var failures []error
	for _, name := range files {
		n, err := readNote(dir, name)
		if err != nil {
			failures = append(failures, fmt.Errorf("%s/%s: %w", folder, name, err))
			continue
		}
		version := path.Dir(name)
		byVersion[version] = append(byVersion[version], n)
	}
	if err := errors.Join(failures...); err != nil {
		return nil, err
	}
	var releases []release
	for version, notes := range byVersion {
		slices.SortStableFunc(notes, func(a, b note) int { return cmp.Compare(a.Area, b.Area) })
		releases = append(releases, release{version, notes})
	}
	slices.SortFunc(releases, func(a, b release) int { return compareVersions(b.version, a.version) })
	return releases, nil
}

func readNote(dir fs.FS, name string) (note, error) {
	var n note
	if !strings.HasSuffix(name, ".yaml") {
		return n, errors.New("a note's name ends with .yaml")
	}
	if _, err := parseVersion(path.Dir(name)); err != nil {
		return n, err
	}
	text, err := fs.ReadFile(dir, name)
	if err != nil {
		return n, err
	}
	if err := yaml.UnmarshalStrict(text, &n); err != nil {
		return n, err
	}
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
	}
	switch {
	case !slices.Contains(names, n.Kind):
		return n, fmt.Errorf("kind is %q, want one of %s", n.Kind, strings.Join(names, ", "))
	case !slices.Contains(areas, n.Area):
		return n, fmt.Errorf("area is %q, want one of %s", n.Area, strings.Join(areas, ", "))
	case strings.TrimSpace(n.Note) == "":
		return n, errors.New("note is empty, want what changed for users")
	}
	return n, nil
}

// parseVersion returns the three numbers of a version such as 0.2.0.
func parseVersion(version string) ([3]int, error) {
	var numbers [3]int
	parts := strings.Split(version, ".")
	if len(parts) != len(numbers) {
		return numbers, fmt.Errorf("folder %q is not a version such as 0.2.0", version)
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 31)
		if err != nil {
			return numbers, fmt.Errorf("folder %q is not a version such as 0.2.0", version)
		}
		numbers[i] = int(n)
	}
	return numbers, nil
}

// compareVersions compares two versions that parseVersion accepts.
func compareVersions(a, b string) int {
	left, _ := parseVersion(a)
	right, _ := parseVersion(b)
	return slices.Compare(left[:], right[:])
}

// changelog returns the page of all releases.
func changelog(releases []release) []byte {
	var b bytes.Buffer
	b.WriteString("# Changes\n\n<!-- Written by 'make changelog' from the files in " + folder + ". -->\n")
	for _, r := range releases {
		fmt.Fprintf(&b, "\n## %s\n", r.version)
		var upgrades []string
		for _, n := range r.notes {
			if n.Upgrade != "" {
				upgrades = append(upgrades, n.Upgrade)
			}
		}
		writeList(&b, "Before you upgrade", upgrades)
		for _, k := range kinds {
			var items []string
			for _, n := range r.notes {
				if n.Kind == k.name {
					items = append(items, n.text())
				}
			}
			writeList(&b, k.heading, items)
		}
	}
	return b.Bytes()
}

// text is the note as an item of a list.
func (n note) text() string {
	text := "**" + n.Area + "**: " + strings.TrimSpace(n.Note)
	if len(n.Issue) > 0 {
		text += " (" + strings.Join(n.Issue, ", ") + ")"
	}
	return text
}

// writeList writes nothing for an empty list.
func writeList(b *bytes.Buffer, heading string, items []string) {
	if len(items) == 0 {
		return
	}
	fmt.Fprintf(b, "\n### %s\n\n", heading)
	for _, item := range items {
		b.WriteString("- " + strings.ReplaceAll(strings.TrimSpace(item), "\n", "\n  ") + "\n")
	}
}
