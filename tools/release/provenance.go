package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// statementType is the media type of an in-toto statement.
const statementType = "application/vnd.in-toto+json"

// provenance writes an in-toto statement with SLSA's provenance, version 1, of all files and
// images: from which commit and how they were built. It has no time and no name of a machine,
// so that the same commit gives the same statement. With a key it is the payload of a signed
// DSSE envelope.
func (r *release) provenance(images []image) error {
	type digests map[string]string
	type resource struct {
		Name   string  `json:"name,omitempty"`
		URI    string  `json:"uri,omitempty"`
		Digest digests `json:"digest"`
	}
	var subjects []resource
	files, err := r.files()
	if err != nil {
		return err
	}
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		subjects = append(subjects, resource{Name: name, Digest: digests{"sha256": fmt.Sprintf("%x", sha256.Sum256(text))}})
	}
	for _, i := range images {
		subjects = append(subjects, resource{Name: r.registry + "/" + i.image, Digest: digests{i.digest.Algorithm: i.digest.Hex}})
	}
	var platforms []string
	for _, p := range r.platforms {
		platforms = append(platforms, p.String())
	}
	statement, err := json.Marshal(map[string]any{
		"_type":         "https://in-toto.io/Statement/v1",
		"subject":       subjects,
		"predicateType": "https://slsa.dev/provenance/v1",
		"predicate": map[string]any{
			"buildDefinition": map[string]any{
				"buildType":          "https://" + modulePath + "/tree/main/tools/release",
				"externalParameters": map[string]any{"version": r.source.Version, "registry": r.registry, "platforms": platforms},
				"resolvedDependencies": []resource{{
					URI: "git+https://" + modulePath, Digest: digests{"gitCommit": r.source.Commit},
				}},
			},
			"runDetails": map[string]any{"builder": map[string]any{
				"id": "https://" + modulePath + "/tree/main/tools/release", "version": map[string]string{"go": runtime.Version()},
			}},
		},
	})
	if err != nil {
		return err
	}
	name := fmt.Sprintf("outrigger_%s_provenance.intoto.json", r.source.Version)
	if r.signer != nil {
		name += "l"
		if statement, err = envelope(r.signer, statementType, statement); err != nil {
			return err
		}
	}
	return r.write(name, append(statement, '\n'))
}

// files returns the names of the files of the release, without folders, sorted.
func (r *release) files() ([]string, error) {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// notes writes what the page of changes says about the version.
func (r *release) notes(page []byte) error {
	_, text, found := strings.Cut(string(page), "\n## "+r.source.Version+"\n")
	if !found {
		return fmt.Errorf("CHANGELOG.md has no version %s: add files to releasenotes/%[1]s, and run 'make changelog'", r.source.Version)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	// Links of the page are relative to the root of the repository.
	text = strings.ReplaceAll(text, "](docs/", "](https://"+modulePath+"/blob/v"+r.source.Version+"/docs/")
	return r.write(fmt.Sprintf("outrigger_%s_notes.md", r.source.Version), []byte(strings.TrimLeft(text, "\n")))
}
