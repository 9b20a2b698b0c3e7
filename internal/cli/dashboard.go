package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/dashboard"
	"github.com/outrigger-mesh/outrigger/internal/limit"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
)

// newDashboardCommand returns the command dashboard.
func newDashboardCommand() *cobra.Command {
	var (
		f       proxyFlags
		port    uint16
		browser bool
		log     logFlags
	)
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "Show the mesh in a browser",
		Long: `Show the mesh in a browser: who calls whom, what is refused and by which rule, splits,
problems, and the proxies with their configuration.

The command serves the page on this machine until Ctrl-C and prints its address, which
contains a key; without it, the page cannot be opened. The page only reads, and loads
nothing from the Internet.

The data comes from the controllers, which the command asks through the API server, as
'outrigger proxy list' does. The user needs a RoleBinding to the Role outrigger-viewer in
the control plane's namespace.

For a controller that is not in a cluster, give --debug-address. Its MeshConfig must have
spec.observability.enableDebugServer set to true.`,
		Example: `  outrigger dashboard
  outrigger dashboard --browser

  # of a controller without a cluster
  outrigger dashboard --debug-address 127.0.0.1:9092`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			logger, err := log.logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			ask := f.ask
			if f.address == "" {
				kept := &keptAccess{flags: &f}
				// An error of authorization is for the command line, not for the page.
				if _, err := kept.get(cmd.Context()); err != nil {
					return err
				}
				ask = kept.ask
			}
			listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				return fmt.Errorf("listening for the browser: %w; choose another port with --port", err)
			}
			options := dashboard.Options{Ask: ask, Log: logger}
			address := options.Local(listener)
			terminal.Fprintln(cmd.OutOrStdout(), "The dashboard is at", address)
			if browser {
				if err := openBrowser(cmd.Context(), address); err != nil {
					terminal.Fprintln(cmd.ErrOrStderr(), "warning: no browser was opened:", err)
				}
			}
			return limit.NewServer(dashboard.New(options), limit.Bounds{}, logger).Run(cmd.Context(), listener, 0)
		},
	}
	flags := cmd.Flags()
	f.kube.add(flags)
	f.addMesh(flags)
	flags.Uint16Var(&port, "port", 0, "port on 127.0.0.1; 0 means a free one")
	flags.BoolVar(&browser, "browser", false, "open the page in the default browser")
	f.kube.complete(cmd)
	log.add(flags)
	return cmd
}

// openBrowser starts the program that opens an address.
func openBrowser(ctx context.Context, address string) error {
	command := []string{"xdg-open", address}
	switch runtime.GOOS {
	case "darwin":
		command[0] = "open"
	case "windows":
		command = []string{"rundll32", "url.dll,FileProtocolHandler", address}
	}
	return exec.CommandContext(ctx, command[0], command[1:]...).Start()
}

// keptAccess keeps the access to the controllers for some time, so that a page that reads
// every few seconds does not request a token each time.
type keptAccess struct {
	flags *proxyFlags
	mu    sync.Mutex
	last  *access
	until time.Time
}

// keep is how long an access is kept. Its token is valid for longer.
const keep = viewerLife / 2 * time.Second

func (k *keptAccess) get(ctx context.Context) (*access, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.last != nil && time.Now().Before(k.until) {
		return k.last, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, k.flags.timeout, fmt.Errorf("no answer in %s", k.flags.timeout))
	defer cancel()
	a, err := k.flags.access(ctx)
	if err == nil {
		k.last, k.until = a, time.Now().Add(keep)
	}
	return a, err
}

// ask implements dashboard.Ask.
func (k *keptAccess) ask(ctx context.Context, path string, take func(controller string, answer []byte) error) error {
	a, err := k.get(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, k.flags.timeout, fmt.Errorf("no answer in %s", k.flags.timeout))
	defer cancel()
	err = a.ask(ctx, path, take)
	if err != nil && !errors.Is(err, context.Canceled) {
		// The controllers' pods may have been replaced.
		k.mu.Lock()
		k.last = nil
		k.mu.Unlock()
	}
	return err
}
