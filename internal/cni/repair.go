package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/capture"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// note is what libcni, in the container runtime, writes about a network that it made.
type note struct {
	NetNS          string      `json:"netns"`
	CNIArgs        [][2]string `json:"cniArgs"`
	CapabilityArgs podConf     `json:"capabilityArgs"`
	Result         struct {
		Interfaces []struct {
			Sandbox string `json:"sandbox"`
		} `json:"interfaces"`
	} `json:"result"`
}

func (n *note) netns() string {
	if n.NetNS != "" {
		return n.NetNS
	}
	for _, i := range n.Result.Interfaces {
		if i.Sandbox != "" {
			return i.Sandbox
		}
	}
	return ""
}

func (n *note) pod() string {
	var namespace, name string
	for _, arg := range n.CNIArgs {
		switch arg[0] {
		case "K8S_POD_NAMESPACE":
			namespace = arg[1]
		case "K8S_POD_NAME":
			name = arg[1]
		}
	}
	return namespace + "/" + name
}

// repairAll redirects the traffic of pods whose network was made without the plug-in:
// before it was installed, or while another agent had the configuration changed. Nothing
// of theirs has run yet, since their init container waits for the rules.
func (n *node) repairAll() {
	files, err := os.ReadDir(n.resultsDir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	n.say("reading the container runtime's notes", err)
	if n.seen == nil {
		n.seen = make(map[string]time.Time)
	}
	there := make(map[string]bool, len(files))
	for _, file := range files {
		there[file.Name()] = true
		info, err := file.Info()
		if err != nil || !info.Mode().IsRegular() || n.seen[file.Name()].Equal(info.ModTime()) {
			continue
		}
		err = n.repairOne(file.Name())
		n.say(aboutNote+file.Name(), err)
		if err == nil {
			n.seen[file.Name()] = info.ModTime()
		}
	}
	for name := range n.seen {
		if !there[name] {
			delete(n.seen, name)
		}
	}
	for what := range n.said {
		if name, ok := strings.CutPrefix(what, aboutNote); ok && !there[name] {
			delete(n.said, what)
		}
	}
}

// aboutNote begins what is said about a note.
const aboutNote = "repairing the pod of note "

func (n *node) repairOne(name string) error {
	text, err := os.ReadFile(filepath.Join(n.resultsDir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var note note
	if err := json.Unmarshal(text, &note); err != nil {
		return err
	}
	if _, ok := note.CapabilityArgs.Annotations[agentspec.RedirectionAnnotation]; !ok {
		return nil
	}
	netns := note.netns()
	if _, err := os.Stat(netns); errors.Is(err, fs.ErrNotExist) {
		// The pod has ended.
		return nil
	}
	there, err := capture.Present(capture.Options{NetNS: netns})
	if err != nil || there {
		return err
	}
	if _, err := note.CapabilityArgs.redirect(netns); err != nil {
		return fmt.Errorf("pod %s: %w", note.pod(), err)
	}
	n.log.Info("repaired a pod whose network was made without the plug-in", "pod", note.pod())
	return nil
}
