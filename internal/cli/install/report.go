package install

import (
	"io"
	"strings"

	release "helm.sh/helm/v4/pkg/release/v1"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
)

// result is the output of -o json and yaml.
type result struct {
	Release   string   `json:"release"`
	Namespace string   `json:"namespace"`
	Revision  string   `json:"revision"`
	Version   string   `json:"version"`
	State     int      `json:"state"`
	Status    string   `json:"status"`
	Objects   []string `json:"objects"`
}

// report prints the notes, or the result in the format of -o.
func (a *application) report(stdout io.Writer, done *release.Release) error {
	r := result{
		Release: a.release, Namespace: a.namespace, Revision: a.revision, Version: a.chart.AppVersion(),
		State: done.Version, Status: done.Info.Status.String(),
	}
	for _, obj := range a.objects {
		r.Objects = append(r.Objects, resourceName(obj.GroupVersionKind().Group, obj.GetKind(), obj.GetName()))
	}
	switch a.output {
	case "name":
		_, err := io.WriteString(stdout, terminal.Text(strings.Join(r.Objects, "\n"))+"\n")
		return err
	case "json", "yaml":
		return usage.PrintAs(stdout, a.output, r)
	}
	_, err := io.WriteString(stdout, "\n"+terminal.Text(strings.TrimSpace(a.rendered.Notes))+"\n")
	return err
}

// resourceName returns the name of an object as kubectl prints it with -o name.
func resourceName(group, kind, name string) string {
	kind = strings.ToLower(kind)
	if group != "" {
		kind += "." + group
	}
	return kind + "/" + name
}
