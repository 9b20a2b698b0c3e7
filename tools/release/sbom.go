package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// spdxType is the media type of an SPDX document in JSON.
const spdxType = types.MediaType("application/spdx+json")

func newStaticLayer(text []byte) v1.Layer { return static.NewLayer(text, spdxType) }

// newSBOM returns the bill of materials of a program as an SPDX 2.3 document: the program,
// Go's standard library, and every module in the program's own build information.
func newSBOM(name string, on platform, binary []byte, s source) ([]byte, error) {
	build, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, fmt.Errorf("reading the program's modules: %w", err)
	}
	sum := sha256.Sum256(binary)
	program := newPackage("Program", name, s.Version)
	program.PrimaryPackagePurpose, program.PackageLicenseDeclared = "APPLICATION", "Apache-2.0"
	program.PackageDownloadLocation = "git+https://" + modulePath + "@" + s.Commit
	program.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: fmt.Sprintf("%x", sum)}}
	library := newModule("Go", "stdlib", strings.TrimPrefix(build.GoVersion, "go"))
	library.PackageLicenseDeclared = "BSD-3-Clause"
	document := spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName:      fmt.Sprintf("%s %s %s", name, s.Version, on),
		DocumentNamespace: fmt.Sprintf("https://%s/spdx/%x", modulePath, sum),
		CreationInfo: &spdx.CreationInfo{Created: s.Date.Format(time.RFC3339), Creators: []common.Creator{
			{CreatorType: "Organization", Creator: "Outrigger"}, {CreatorType: "Tool", Creator: "outrigger-release"},
		}},
		Packages:      []*spdx.Package{program, library},
		Relationships: []*spdx.Relationship{related("DOCUMENT", common.TypeRelationshipDescribe, program), related("Program", common.TypeRelationshipDependsOn, library)},
	}
	for i, m := range build.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		module := newModule(fmt.Sprintf("Module-%d", i+1), m.Path, m.Version)
		document.Packages = append(document.Packages, module)
		document.Relationships = append(document.Relationships, related("Program", common.TypeRelationshipDependsOn, module))
	}
	text, err := json.MarshalIndent(document, "", "  ")
	return append(text, '\n'), err
}

func related(from common.ElementID, relationship string, to *spdx.Package) *spdx.Relationship {
	return &spdx.Relationship{RefA: common.DocElementID{ElementRefID: from}, RefB: common.DocElementID{ElementRefID: to.PackageSPDXIdentifier}, Relationship: relationship}
}

func newModule(id, path, version string) *spdx.Package {
	p := newPackage(id, path, version)
	p.PackageExternalReferences = []*spdx.PackageExternalReference{{
		Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: "pkg:golang/" + path + "@" + version,
	}}
	return p
}

func newPackage(id, name, version string) *spdx.Package {
	const unknown = "NOASSERTION"
	return &spdx.Package{
		PackageSPDXIdentifier: common.ElementID(id), PackageName: name, PackageVersion: version,
		PackageDownloadLocation: unknown, PackageLicenseConcluded: unknown, PackageLicenseDeclared: unknown, PackageCopyrightText: unknown,
	}
}
