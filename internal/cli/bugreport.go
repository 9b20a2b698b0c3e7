package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/redact"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
)

// reportFlags are the flags of 'outrigger bug-report'.
type reportFlags struct {
	kube      kubeFlags
	mesh      meshFlags
	namespace string
	pod       string
	output    string
	since     time.Duration
	timeout   time.Duration
	dryRun    bool
}

func newBugReportCommand() *cobra.Command {
	var f reportFlags
	cmd := &cobra.Command{
		Use:   "bug-report",
		Short: "Write an archive with information about the mesh for a bug report, without secrets",
		Long: `Write an archive with information about the mesh for a bug report, without secrets.

The archive contains versions, the findings of 'outrigger check', nodes, the objects of the
mesh and of its control plane, their Events and logs, and the connected proxies. With --pod,
it also contains that pod, its Events, the logs of its sidecar and the output of 'outrigger
proxy get'.

The command does not read Secrets and ConfigMaps. From everything else it removes tokens,
passwords, private keys, and the commands and environment variables of applications;
docs/runbook.md has the whole list. The archive still contains names, addresses and
policies, so look into it before you send it.

If something cannot be read, the archive names it in errors.txt, and the command succeeds.

Exit codes: 0 the archive was written, 1 it was not, 2 wrong usage.`,
		Example: `  # write outrigger-bug-report-TIME.tar.gz
  outrigger bug-report

  # include one pod, and only the last hour of the logs
  outrigger bug-report --pod shop/cart-7d9f-x2x4z --since 1h -o cart.tar.gz

  # include a pod of a Deployment; only list what the archive would contain
  outrigger bug-report --pod deploy/cart -n shop --dry-run`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	f.kube.add(flags)
	f.mesh.add(flags)
	f.mesh.addConfig(flags)
	flags.StringVarP(&f.namespace, "namespace", "n", "", "namespace of --pod; the default is that of the kubeconfig's context")
	flags.StringVar(&f.pod, "pod", "", "pod to include, as POD, TYPE/NAME or NAMESPACE/POD")
	flags.StringVarP(&f.output, "output", "o", "", "file to write, which must not exist; the default is outrigger-bug-report-TIME.tar.gz")
	flags.DurationVar(&f.since, "since", 0, "only log lines that are not older than this, for example 1h")
	flags.DurationVar(&f.timeout, "timeout", 30*time.Second, "how long one request may take")
	flags.BoolVar(&f.dryRun, "dry-run", false, "list what the archive would contain, and write no archive")
	f.kube.complete(cmd)
	of := &proxyFlags{}
	completeFlag(cmd, "pod", func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		of.kube, of.namespace = f.kube, f.namespace
		return of.completeTargets(cmd, args, begun)
	})
	return cmd
}

func (f *reportFlags) run(cmd *cobra.Command) error {
	if f.since < 0 || f.timeout <= 0 {
		return usage.Errorf("--since and --timeout are times such as 1h")
	}
	if f.namespace != "" && f.pod == "" {
		return usage.Errorf("-n is the namespace of --pod, which is missing; the control plane's is --mesh-namespace")
	}
	if f.output == "" {
		f.output = "outrigger-bug-report-" + time.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
	}
	if !f.dryRun {
		if err := absent(f.output); err != nil {
			return err
		}
	}
	ctx := cmd.Context()
	r, err := f.newReport(ctx, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	r.gather(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.finish()
	if f.dryRun {
		for _, file := range r.files {
			terminal.Fprintf(cmd.OutOrStdout(), "%9d  %s\n", len(file.content), file.name)
		}
		return nil
	}
	size, err := writeArchive(f.output, r.files, r.began)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	terminal.Fprintf(out, "wrote %s: %d files, %d bytes", f.output, len(r.files), size)
	if r.failed > 0 {
		terminal.Fprintf(out, "; %d items could not be read: see errors.txt in it", r.failed)
	}
	terminal.Fprintf(out, "\nSecrets were removed where their field or their form shows that they are secrets.\nLook into the archive before you send it: tar -xzf %s\n", f.output)
	return nil
}

// absent returns an error if the file exists.
func absent(name string) error {
	_, err := os.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil:
		return fmt.Errorf("%s exists already and is not overwritten; remove it, or name another file with -o", name)
	}
	return err
}

// writeArchive writes the files to an archive, which never exists incomplete.
func writeArchive(name string, files []reportFile, now time.Time) (size int64, err error) {
	// Only the owner may read it.
	temporary, err := os.CreateTemp(filepath.Dir(name), ".outrigger-bug-report-*")
	if err != nil {
		return 0, fmt.Errorf("%w; with -o, name a file that can be written", err)
	}
	defer func() { err = errors.Join(err, ignoreAbsent(os.Remove(temporary.Name()))) }()
	err = archive(temporary, strings.TrimSuffix(filepath.Base(name), ".tar.gz"), files, now)
	if err == nil {
		err = temporary.Sync()
	}
	if info, failed := temporary.Stat(); err == nil {
		size, err = info.Size(), failed
	}
	if err = errors.Join(err, temporary.Close()); err != nil {
		return 0, fmt.Errorf("writing %s: %w", name, err)
	}
	// Unlike a rename, a link does not replace a file that was created in the meantime. Not
	// every file system supports links.
	switch err := os.Link(temporary.Name(), name); {
	case err == nil:
		return size, nil
	case errors.Is(err, fs.ErrExist):
		return 0, fmt.Errorf("writing %s: %w", name, err)
	}
	if err := absent(name); err != nil {
		return 0, err
	}
	return size, os.Rename(temporary.Name(), name)
}

func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// newReport connects to the cluster and finds the pod of --pod. It returns an error if one
// of them cannot be found.
func (f *reportFlags) newReport(ctx context.Context, errorsTo io.Writer) (*report, error) {
	r := &report{flags: f, to: errorsTo, began: time.Now().UTC()}
	var err error
	if r.config, err = f.kube.burstConfig(); err != nil {
		return nil, err
	}
	if r.client, err = kubernetes.NewForConfig(r.config); err != nil {
		return nil, fmt.Errorf("creating a client for %s: %w", r.config.Host, err)
	}
	if r.objects, err = dynamic.NewForConfig(r.config); err != nil {
		return nil, fmt.Errorf("creating a client for %s: %w", r.config.Host, err)
	}
	asked, cancel := r.limited(ctx)
	defer cancel()
	if _, err := r.client.Discovery().RESTClient().Get().AbsPath("/version").DoRaw(asked); err != nil {
		return nil, fmt.Errorf("asking the API server %s: %w", r.config.Host, err)
	}
	if f.pod == "" {
		return r, nil
	}
	named := proxyFlags{kube: f.kube, namespace: f.namespace}
	target, err := named.target(f.pod)
	if err != nil {
		return nil, err
	}
	pods, err := target.pods(asked, r.client)
	switch {
	case apierrors.IsForbidden(err):
		r.fail("the pod of --pod", err)
	case err != nil:
		return nil, err
	case len(pods) == 0:
		return nil, fmt.Errorf("%s in namespace %s has no pods", target, target.namespace)
	default:
		r.pod = &pods[0]
		if chosen, err := target.chosen(pods); err == nil {
			r.pod = chosen
		}
	}
	return r, nil
}

// limited returns a context with the timeout of one request.
func (r *report) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, r.flags.timeout, fmt.Errorf("no answer in %s", r.flags.timeout))
}

// reportFile is a file of the archive. It contains no secrets.
type reportFile struct {
	name    string
	content []byte
}

// report collects the content of the archive.
type report struct {
	flags   *reportFlags
	config  *rest.Config
	client  kubernetes.Interface
	objects dynamic.Interface
	// pod is the pod of --pod, or nil.
	pod    *corev1.Pod
	began  time.Time
	files  []reportFile
	to     io.Writer
	errors strings.Builder
	failed int
}

// fail records that something cannot be read.
func (r *report) fail(what string, err error) {
	if err == nil {
		return
	}
	r.failed++
	text := redact.Text(what + ": " + strings.ReplaceAll(err.Error(), "\n", "\n  "))
	// The lines of the error after the first are indented.
	_, _ = io.WriteString(r.to, terminal.Text(text)+"\n")
	r.errors.WriteString(text + "\n")
}

// finish adds the file with everything that could not be read.
func (r *report) finish() {
	if r.failed > 0 {
		r.files = append(r.files, reportFile{"errors.txt", []byte(r.errors.String())})
	}
}
