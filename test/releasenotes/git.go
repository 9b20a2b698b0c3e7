package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path"
	"strings"
)

// commit is what a commit says and which files it changes.
type commit struct {
	id, message string
	files       []string
}

// commitsSince returns the commits after one, in a repository, the newest first. Its error
// names the way out if the repository does not have that commit.
func commitsSince(ctx context.Context, dir, since string) ([]commit, error) {
	cmd := exec.CommandContext(ctx, "git", "-C", dir, "log", "--no-merges", "--name-only", "-z", "--format=%x01%H%x02%B%x02", since+"..HEAD")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("commits after %s: %w: %s; fetch the whole history, or name a commit of this branch", since, err, bytes.TrimSpace(stderr.Bytes()))
	}
	var commits []commit
	for _, text := range strings.Split(string(out), "\x01")[1:] {
		parts := strings.SplitN(text, "\x02", 3)
		if len(parts) < 3 {
			return nil, fmt.Errorf("git log printed %q, which is no commit", text)
		}
		c := commit{id: parts[0], message: parts[1]}
		for _, file := range strings.Split(parts[2], "\x00") {
			if file = strings.TrimSpace(file); file != "" {
				c.files = append(c.files, file)
			}
		}
		commits = append(commits, c)
	}
	return commits, nil
}

// unnoted returns an error if some commits change what users see and none of all has a note or
// says "Release-note: none".
func unnoted(commits []commit) error {
	changed := make(map[string]string)
	for _, c := range commits {
		if strings.Contains(c.message, "\nRelease-note: none") {
			continue
		}
		for _, file := range c.files {
			if strings.HasPrefix(file, folder+"/") {
				return nil
			}
			if visible(file) && changed[c.id] == "" {
				changed[c.id] = file
			}
		}
	}
	for id, file := range changed {
		return fmt.Errorf("commit %.12s changes %s, which users see, and no commit adds a file to %s/VERSION: "+
			"write one, as CONTRIBUTING.md describes, or end the commit's message with the line \"Release-note: none\"", id, file, folder)
	}
	return nil
}

// visible says whether users see a change of a file: the fields of objects, the chart's values,
// the commands, labels and metrics.
func visible(file string) bool {
	if strings.HasSuffix(file, "_test.go") || strings.Contains(file, "/testdata/") {
		return false
	}
	for _, prefix := range []string{"apis/", "charts/outrigger/crds/", "docs/reference/", "internal/metric/"} {
		if strings.HasPrefix(file, prefix) {
			return true
		}
	}
	return path.Dir(file) == "charts/outrigger" && strings.HasPrefix(path.Base(file), "values.")
}
