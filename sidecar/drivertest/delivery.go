package drivertest

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

var deliveryRules = []rule{
	{
		name:  "accepted",
		why:   "The real proxy takes what Translate makes of every View. A proxy that refuses a configuration keeps its last good one, so the whole pod would be left behind for what one user wrote.",
		check: deliveryAccepted,
	},
	{
		name:  "last_good",
		why:   "The command of agentspec.Mirror.Check takes a version that is good and refuses one that is not, which the agent then puts aside: the proxy goes on with the last good one, also when it is started again. A check that takes everything is none.",
		check: deliveryLastGood,
	},
}

// checkLimit is how long the proxy may take to read one configuration.
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

// deliveryLastGood does what the agent does with a version of the driver's files, in a
// folder of its own.
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
		return fmt.Errorf("the check refuses what Translate makes of a plain View: %w: %s", err, output)
	}
	for i, f := range files {
		broken := slices.Clone(files)
		broken[i].Content = append(bytes.Clone(f.Content), brokenText...)
		if _, err := s.checkVersion(spec, program, broken); err != nil {
			return nil
		}
	}
	// What some files hold may be text of any kind, but not of all.
	return fmt.Errorf("the check takes each file with %q at its end", brokenText)
}

// brokenText is in no proxy's language.
const brokenText = "\n}{ ]]> this is no configuration (\n"

// spec returns what Patch tells the agent to do.
func (s subject) spec() (*agentspec.Spec, error) {
	after, err := s.patch(situation{name: "plain pod", pod: plainPod()}.context())
	if err != nil {
		return nil, err
	}
	for _, list := range [][]corev1.Container{after.Spec.InitContainers, after.Spec.Containers} {
		for _, c := range list {
			for _, e := range c.Env {
				if spec := new(agentspec.Spec); e.Name == agentspec.EnvSpec {
					return spec, decode(e.Value, spec)
				}
			}
		}
	}
	return nil, fmt.Errorf("no container sets %s", agentspec.EnvSpec)
}

// program returns the path of a command's program on this machine, which is the proxy's
// own as a rule.
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

// checkVersion runs the check over the files, beside an identity, and returns what it
// printed.
func (s subject) checkVersion(spec *agentspec.Spec, program string, files []driver.File) (string, error) {
	dir, err := os.MkdirTemp("", "outrigger-conformance-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	staged := filepath.Join(dir, "version")
	here := strings.NewReplacer("${MIRROR}", staged, spec.Mirror.Dir, staged, driver.IdentityDir, filepath.Join(dir, "identity"), driver.RunDir, dir)
	if err := writeIdentity(filepath.Join(dir, "identity")); err != nil {
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
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.WaitDelay = staged, time.Second
	output, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(output)), err
}

// writeIdentity writes the files that the agent keeps, of an identity of nobody's.
func writeIdentity(dir string) error {
	c, err := newMeshOfOne()
	if err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(c.workload.PrivateKey)
	if err != nil {
		return err
	}
	secret := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.workload.Certificate[0]})
	err = os.MkdirAll(dir, 0o700)
	for name, content := range map[string][]byte{
		"key.pem": secret, "chain.pem": chain, "identity.pem": append(bytes.Clone(secret), chain...),
		"bundle.pem": c.TrustBundle(),
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	return err
}
