package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// WriteFiles writes a proxy's files to a folder that also takes the place of
// driver.RunDir and driver.IdentityDir, which the files may name.
func WriteFiles(dir string, files []driver.File) error {
	here := strings.NewReplacer(driver.IdentityDir, dir, driver.RunDir, dir)
	for _, f := range files {
		path := filepath.Join(dir, filepath.FromSlash(f.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(here.Replace(string(f.Content))), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Check writes a proxy's files to a temporary folder, beside an identity, and runs the
// program on them, with further environment variables. The program must exit with 0. In its
// arguments ${MIRROR} is the folder, as in agentspec.Mirror.Check.
func Check(ctx context.Context, identity mesh.Identity, files []driver.File, env []string, program string, args ...string) error {
	dir, err := os.MkdirTemp("", "outrigger-check-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := errors.Join(WriteIdentity(dir, identity), WriteFiles(dir, files)); err != nil {
		return err
	}
	var own []string
	for _, arg := range args {
		own = append(own, strings.ReplaceAll(arg, "${MIRROR}", dir))
	}
	cmd := exec.CommandContext(ctx, program, own...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = dir, append(os.Environ(), env...), time.Second
	out, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s did not finish reading the configuration: %w", program, ctx.Err())
	case err != nil:
		return fmt.Errorf("%s refuses the configuration: %w: %s", program, err, strings.TrimSpace(string(out)))
	}
	return nil
}
