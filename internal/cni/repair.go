package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/capture"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// record is libcni's record, in the container runtime, of a pod's network.
type record struct {
	NetNS          string      `json:"netns"`
	CNIArgs        [][2]string `json:"cniArgs"`
	CapabilityArgs podConf     `json:"capabilityArgs"`
	Result         struct {
		Interfaces []struct {
			Sandbox string `json:"sandbox"`
		} `json:"interfaces"`
	} `json:"result"`
}

func (r *record) netns() string {
	if r.NetNS != "" {
		return r.NetNS
	}
	for _, i := range r.Result.Interfaces {
		if i.Sandbox != "" {
			return i.Sandbox
		}
	}
	return ""
}

func (r *record) pod() string {
	var namespace, name string
	for _, arg := range r.CNIArgs {
		switch arg[0] {
		case "K8S_POD_NAMESPACE":
			namespace = arg[1]
		case "K8S_POD_NAME":
			name = arg[1]
		}
	}
	return namespace + "/" + name
}

// repairAll redirects the traffic of pods whose network was created without the plug-in:
// before it was installed, or while another program had removed its entry. The app has
// not started yet, since the init container waits for the rules.
func (n *node) repairAll() {
	files, err := os.ReadDir(n.resultsDir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	n.logChange("reading the container runtime's records", err)
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
		n.logChange(repairing+file.Name(), err)
		if err == nil {
			n.seen[file.Name()] = info.ModTime()
		}
	}
	maps.DeleteFunc(n.seen, func(name string, _ time.Time) bool { return !there[name] })
	maps.DeleteFunc(n.logged, func(what, _ string) bool {
		name, ok := strings.CutPrefix(what, repairing)
		return ok && !there[name]
	})
}

// repairing is the prefix of a record's key in node.logged.
const repairing = "repairing the pod of record "

func (n *node) repairOne(name string) error {
	text, err := os.ReadFile(filepath.Join(n.resultsDir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return err
	}
	if _, ok := r.CapabilityArgs.Annotations[agentspec.RedirectionAnnotation]; !ok {
		return nil
	}
	netns := r.netns()
	if _, err := os.Stat(netns); errors.Is(err, fs.ErrNotExist) {
		// The pod has ended.
		return nil
	}
	present, err := capture.Present(capture.Options{NetNS: netns})
	if err != nil || present {
		return err
	}
	if _, err := r.CapabilityArgs.redirect(netns); err != nil {
		return fmt.Errorf("pod %s: %w", r.pod(), err)
	}
	n.log.Info("repaired a pod whose network was created without the plug-in", "pod", r.pod())
	return nil
}
