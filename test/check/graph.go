package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
)

// listed is a package in the output of go list.
type listed struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
	Module                             struct{ Path string }
}

// graph holds the packages of a module by import path.
type graph struct {
	module   string
	packages map[string]listed
}

func (c check) module(ctx context.Context) (graph, error) {
	out, err := c.command(ctx, "go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports,Module", "./...")
	if err != nil {
		return graph{}, err
	}
	g := graph{packages: make(map[string]listed)}
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return g, nil
		} else if err != nil {
			return graph{}, err
		}
		g.module = p.Module.Path
		g.packages[p.ImportPath] = p
	}
}

// packageOf returns the package whose tests may read a file: the package of the nearest
// folder above it, or the module's root.
func (g graph) packageOf(file string) string {
	for dir := path.Dir(file); dir != "."; dir = path.Dir(dir) {
		if _, ok := g.packages[path.Join(g.module, dir)]; ok {
			return path.Join(g.module, dir)
		}
	}
	return g.module
}

// importersOf returns the short names of the packages that are not chosen but whose tests
// depend on a chosen one.
func (g graph) importersOf(chosen []string) []string {
	reaches := make(map[string]bool)
	for _, p := range chosen {
		reaches[p] = true
	}
	var dependsOn func(importPath string) bool
	dependsOn = func(importPath string) bool {
		known, ok := reaches[importPath]
		if ok {
			return known
		}
		depends := slices.ContainsFunc(g.packages[importPath].Imports, dependsOn)
		reaches[importPath] = depends
		return depends
	}
	var importers []string
	for importPath, p := range g.packages {
		if !slices.Contains(chosen, importPath) && slices.ContainsFunc(slices.Concat(p.Imports, p.TestImports, p.XTestImports), dependsOn) {
			importers = append(importers, g.short(importPath))
		}
	}
	slices.Sort(importers)
	return importers
}

// short returns an import path relative to the module, such as ./mesh.
func (g graph) short(importPath string) string {
	if importPath == g.module {
		return "."
	}
	return "./" + strings.TrimPrefix(importPath, g.module+"/")
}
