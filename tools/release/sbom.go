package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// spdxType is the media type of an SPDX document in JSON.
const spdxType = types.MediaType("application/spdx+json")

func newStaticLayer(text []byte) v1.Layer { return static.NewLayer(text, spdxType) }

// The parts of an SPDX 2.3 document that are needed for a Go program.
type (
	spdxDocument struct {
		Version       string             `json:"spdxVersion"`
		DataLicense   string             `json:"dataLicense"`
		ID            string             `json:"SPDXID"`
		Name          string             `json:"name"`
		Namespace     string             `json:"documentNamespace"`
		Creation      spdxCreation       `json:"creationInfo"`
		Packages      []spdxPackage      `json:"packages"`
		Relationships []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		ID               string          `json:"SPDXID"`
		Name             string          `json:"name"`
		Version          string          `json:"versionInfo,omitempty"`
		Purpose          string          `json:"primaryPackagePurpose,omitempty"`
		DownloadLocation string          `json:"downloadLocation"`
		FilesAnalyzed    bool            `json:"filesAnalyzed"`
		LicenseConcluded string          `json:"licenseConcluded"`
		LicenseDeclared  string          `json:"licenseDeclared"`
		Copyright        string          `json:"copyrightText"`
		Checksums        []spdxChecksum  `json:"checksums,omitempty"`
		References       []spdxReference `json:"externalRefs,omitempty"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxReference struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxRelationship struct {
		Element string `json:"spdxElementId"`
		Type    string `json:"relationshipType"`
		Related string `json:"relatedSpdxElement"`
	}
)

// newSBOM returns the bill of materials of a program as an SPDX 2.3 document: the program,
// Go's standard library, and every module in the program's own build information.
func newSBOM(name string, on platform, binary []byte, s source) ([]byte, error) {
	build, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, fmt.Errorf("reading the program's modules: %w", err)
	}
	sum := sha256.Sum256(binary)
	const root = "SPDXRef-Program"
	document := spdxDocument{
		Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: "SPDXRef-DOCUMENT",
		Name:      fmt.Sprintf("%s %s %s", name, s.Version, on),
		Namespace: fmt.Sprintf("https://%s/spdx/%x", modulePath, sum),
		Creation:  spdxCreation{s.Date.Format(time.RFC3339), []string{"Organization: Outrigger", "Tool: outrigger-release"}},
		Packages: []spdxPackage{
			newSPDXPackage(root, name, s.Version, func(p *spdxPackage) {
				p.Purpose, p.LicenseDeclared = "APPLICATION", "Apache-2.0"
				p.DownloadLocation = "git+https://" + modulePath + "@" + s.Commit
				p.Checksums = []spdxChecksum{{"SHA256", fmt.Sprintf("%x", sum)}}
			}),
			newSPDXPackage("SPDXRef-Go", "stdlib", strings.TrimPrefix(build.GoVersion, "go"), func(p *spdxPackage) {
				p.LicenseDeclared = "BSD-3-Clause"
				p.References = purl("stdlib", strings.TrimPrefix(build.GoVersion, "go"))
			}),
		},
		Relationships: []spdxRelationship{
			{"SPDXRef-DOCUMENT", "DESCRIBES", root},
			{root, "DEPENDS_ON", "SPDXRef-Go"},
		},
	}
	for i, m := range build.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		id := fmt.Sprintf("SPDXRef-Module-%d", i+1)
		document.Packages = append(document.Packages, modulePackage(id, m))
		document.Relationships = append(document.Relationships, spdxRelationship{root, "DEPENDS_ON", id})
	}
	text, err := json.MarshalIndent(document, "", "  ")
	return append(text, '\n'), err
}

func modulePackage(id string, m *debug.Module) spdxPackage {
	return newSPDXPackage(id, m.Path, m.Version, func(p *spdxPackage) { p.References = purl(m.Path, m.Version) })
}

func purl(module, version string) []spdxReference {
	return []spdxReference{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + module + "@" + version}}
}

func newSPDXPackage(id, name, version string, edit func(*spdxPackage)) spdxPackage {
	const unknown = "NOASSERTION"
	p := spdxPackage{
		ID: id, Name: name, Version: version,
		DownloadLocation: unknown, LicenseConcluded: unknown, LicenseDeclared: unknown, Copyright: unknown,
	}
	edit(&p)
	return p
}
