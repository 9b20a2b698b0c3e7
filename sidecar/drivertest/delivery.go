package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/program"
)

var deliveryRules = []rule{
	{
		name:  "accepted",
		why:   "The real proxy accepts the output of Translate for every View. A proxy that rejects a configuration keeps its last good one, so one user's mistake would freeze the whole pod.",
		check: deliveryAccepted,
	},
	{
		name:  "last_good",
		why:   "The command of agentspec.Mirror.Check accepts a good version and rejects a bad one, which the agent then discards: the proxy keeps the last good version, even across restarts. A check that accepts everything is useless.",
		check: deliveryLastGood,
	},
}

// checkLimit is the time limit for the proxy to read one configuration.
const checkLimit = time.Minute

func deliveryAccepted(s subject) error {
	checker, ok := s.driver.(driver.Checker)
	if !ok {
		return nil
	}
	all := views()
	if testing.Short() {
		all = all[:fewViews]
	}
	var errs []error
	for _, v := range all {
		ctx, cancel := context.WithTimeout(context.Background(), checkLimit)
		err := checker.Check(ctx, v.view)
		cancel()
		if errors.Is(err, driver.ErrNoProxy) {
			return err
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", v.name, err))
		}
	}
	return errors.Join(errs...)
}

// deliveryLastGood checks good and broken versions of the driver's files as the agent
// does, in a temporary directory.
func deliveryLastGood(s subject) error {
	spec, err := s.spec()
	if err != nil || spec.Mirror == nil || len(spec.Mirror.Check) == 0 {
		return err
	}
	program, err := s.program(spec.Mirror.Check[0])
	if err != nil {
		return err
	}
	files, err := s.translate(plain().view())
	if err != nil {
		return err
	}
	if output, err := s.checkVersion(spec, program, files); err != nil {
		return fmt.Errorf("the check rejects the output of Translate for a plain View: %w: %s", err, output)
	}
	for i, f := range files {
		broken := slices.Clone(files)
		broken[i].Content = append(bytes.Clone(f.Content), brokenText...)
		if _, err := s.checkVersion(spec, program, broken); err != nil {
			return nil
		}
	}
	// Some files may contain arbitrary text, but not all of them.
	return fmt.Errorf("the check accepts every file with %q appended", brokenText)
}

// brokenText is invalid in the configuration language of any proxy.
const brokenText = "\n}{ ]]> this is no configuration (\n"

// spec returns the agent's Spec as set by Patch.
func (s subject) spec() (*agentspec.Spec, error) {
	after, err := s.patch(situation{name: "plain pod", pod: plainPod()}.context())
	if err != nil {
		return nil, err
	}
	for _, c := range allContainers(after) {
		for _, e := range c.Env {
			if spec := new(agentspec.Spec); e.Name == agentspec.EnvSpec {
				return spec, decode(e.Value, spec)
			}
		}
	}
	return nil, fmt.Errorf("no container sets %s", agentspec.EnvSpec)
}

// program returns the path of a command's program on this machine, usually the proxy's
// own.
func (s subject) program(name string) (string, error) {
	if finder, ok := s.driver.(driver.Finder); ok {
		found, err := finder.FindProxy()
		if err != nil {
			return "", err
		}
		if filepath.Base(found) == filepath.Base(name) {
			return found, nil
		}
	}
	found, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: %w", driver.ErrNoProxy, err)
	}
	return found, nil
}

// checkVersion runs the check on the files, with an identity in place, and returns its
// output.
func (s subject) checkVersion(spec *agentspec.Spec, proxy string, files []driver.File) (string, error) {
	dir, err := os.MkdirTemp("", "outrigger-conformance-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	staged, identity := filepath.Join(dir, "version"), filepath.Join(dir, "identity")
	here := strings.NewReplacer("${MIRROR}", staged, spec.Mirror.Dir, staged, driver.IdentityDir, identity, driver.RunDir, dir)
	if err := errors.Join(os.Mkdir(identity, 0o700), program.WriteIdentity(identity, plain().proxy.Identity)); err != nil {
		return "", err
	}
	for _, f := range files {
		file := filepath.Join(staged, filepath.FromSlash(f.Name))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return "", err
		}
		if err := os.WriteFile(file, []byte(here.Replace(string(f.Content))), 0o600); err != nil {
			return "", err
		}
	}
	var args []string
	for _, arg := range spec.Mirror.Check[1:] {
		args = append(args, here.Replace(arg))
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, proxy, args...)
	cmd.Dir, cmd.WaitDelay = staged, time.Second
	output, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(output)), err
}
