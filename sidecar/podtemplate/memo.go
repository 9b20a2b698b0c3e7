package podtemplate

import (
	"slices"
	"strings"
	"text/template/parse"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// What a template renders depends on the facts, and besides on the values, which most templates
// only print. So the rendering with marks in place of the values is the same for all pods with
// the same facts, and is made once.

// facts are all results of the methods of data that are not values.
type facts struct {
	class, pullPolicy, logLevel, resources         string
	concurrency, preStopSeconds                    int32
	serverPort                                     uint32
	cpuLimit, native, holdApplication, privileged  bool
	redirects, proxyless, cni, windows, hasNoAgent bool
	podCertificate                                 driver.PodCertificate
}

func (d *data) facts() facts {
	return facts{
		class: d.Class(), pullPolicy: d.PullPolicy(), logLevel: d.LogLevel(), resources: textOf(d.Resources()),
		concurrency: d.Concurrency(), preStopSeconds: d.PreStopSeconds(), serverPort: d.ServerPort(0),
		cpuLimit: d.CPULimit(), native: d.Native(), holdApplication: d.HoldApplication(), privileged: d.PrivilegedInit(),
		redirects: d.Redirects(), proxyless: d.Proxyless(), cni: d.CNI(), windows: d.Windows(), hasNoAgent: d.agent == nil,
		podCertificate: d.podCertificate(),
	}
}

// textOf returns a text that only equal resources have.
func textOf(r corev1.ResourceRequirements) string {
	var lines []string
	for kind, list := range map[string]corev1.ResourceList{"limits": r.Limits, "requests": r.Requests} {
		for name, amount := range list {
			lines = append(lines, kind+" "+string(name)+" "+amount.String())
		}
	}
	for _, claim := range r.Claims {
		lines = append(lines, "claims "+claim.Name+" "+claim.Request)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// source is a method of data that returns a value.
type source byte

const (
	imageSource source = iota
	initImageSource
	meshNameSource
	meshNamespaceSource
	trustDomainSource
	namespaceSource
	serviceAccountSource
	workloadSource
	agentSpecSource
	redirectionSource
)

// sources are the names of the methods.
var sources = map[string]source{
	"Image": imageSource, "InitImage": initImageSource, "MeshName": meshNameSource, "MeshNamespace": meshNamespaceSource,
	"TrustDomain": trustDomainSource, "Namespace": namespaceSource, "ServiceAccount": serviceAccountSource,
	"Workload": workloadSource, "AgentSpec": agentSpecSource, "Redirection": redirectionSource,
}

// mark stands for the value of a source. No value of a pod holds a NUL.
func (s source) mark() string { return "\x00" + string(rune(s)) }

// sourceOf returns the source that has a mark.
func sourceOf(mark string) (source, bool) {
	for _, s := range sources {
		if s.mark() == mark {
			return s, true
		}
	}
	return 0, false
}

// rendering is what a template renders for some facts: a partial pod with numbers as
// placeholders, and the sources of the values with these numbers.
type rendering struct {
	pod     *corev1.Pod
	sources []source
	// places are those of the placeholders, unless there are some in maps.
	places []stringPath
	inMaps bool
}

// with returns a copy of the partial pod with the values in place of the placeholders.
func (r *rendering) with(values []string) (*corev1.Pod, error) {
	pod := r.pod.DeepCopy()
	if r.inMaps {
		return pod, putAllValues(pod, values)
	}
	for _, p := range r.places {
		p.put(pod, values)
	}
	return pod, nil
}

// maxRenderings bounds the renderings of a template. Facts come from the mesh's configuration
// and a few annotations.
const maxRenderings = 256

// remembered returns the rendering for the data, or nil if the template must be rendered for
// each pod.
func (t *Template) remembered(d *data) *rendering {
	if !t.printsOnly {
		return nil
	}
	key := d.facts()
	t.mu.Lock()
	r, ok := t.renderings[key]
	t.mu.Unlock()
	if ok {
		return r
	}
	marked := *d
	marked.marks = true
	shared, marks, err := t.shared(&marked)
	if err == nil {
		r = &rendering{pod: shared}
		for _, m := range marks {
			s, ok := sourceOf(m)
			if !ok {
				r = nil
				break
			}
			r.sources = append(r.sources, s)
		}
	}
	if r != nil {
		var all bool
		r.places, all = placesOf(r.pod)
		r.inMaps = !all
	}
	// Errors are found again, with the pod's values, when it is rendered.
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.renderings) >= maxRenderings {
		clear(t.renderings)
	}
	t.renderings[key] = r
	return r
}

// values returns the values of sources.
func (d *data) values(sources []source) ([]string, error) {
	values := make([]string, len(sources))
	for i, s := range sources {
		var err error
		if values[i], err = d.content(s); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// printsOnly reports whether the templates only print values, perhaps in quotes: what they
// render does not depend on them otherwise. It may be wrong only in that it denies it.
func printsOnly(trees []*parse.Tree) bool {
	for _, tree := range trees {
		if tree != nil && tree.Root != nil && !printsValues(tree.Root) {
			return false
		}
	}
	return true
}

func printsValues(node parse.Node) bool {
	lists := func(lists ...*parse.ListNode) bool {
		for _, list := range lists {
			if list != nil && !printsValues(list) {
				return false
			}
		}
		return true
	}
	switch n := node.(type) {
	case *parse.ListNode:
		return !slices.ContainsFunc(n.Nodes, func(inner parse.Node) bool { return !printsValues(inner) })
	case *parse.ActionNode:
		return isPrinted(n.Pipe) || !readsValues(n.Pipe)
	case *parse.IfNode:
		return !readsValues(n.Pipe) && lists(n.List, n.ElseList)
	case *parse.RangeNode:
		return !readsValues(n.Pipe) && lists(n.List, n.ElseList)
	case *parse.WithNode:
		return !readsValues(n.Pipe) && lists(n.List, n.ElseList)
	case *parse.TemplateNode:
		return n.Pipe == nil || isDot(n.Pipe) || !readsValues(n.Pipe)
	case *parse.TextNode, *parse.CommentNode, *parse.BreakNode, *parse.ContinueNode:
		return true
	}
	return false
}

// isPrinted reports whether the pipeline is {{ .Value }}, {{ quote .Value }} or
// {{ .Value | quote }}.
func isPrinted(pipe *parse.PipeNode) bool {
	if len(pipe.Decl) > 0 {
		return false
	}
	var words []parse.Node
	switch len(pipe.Cmds) {
	case 1:
		words = pipe.Cmds[0].Args
	case 2:
		words = slices.Concat(pipe.Cmds[1].Args, pipe.Cmds[0].Args)
	}
	if len(words) == 2 && isQuote(words[0]) {
		words = words[1:]
	}
	if len(words) != 1 {
		return false
	}
	field, ok := words[0].(*parse.FieldNode)
	return ok && len(field.Ident) == 1 && field.Ident[0] != "Pod"
}

func isQuote(node parse.Node) bool {
	identifier, ok := node.(*parse.IdentifierNode)
	return ok && identifier.Ident == "quote"
}

func isDot(pipe *parse.PipeNode) bool {
	if len(pipe.Decl) > 0 || len(pipe.Cmds) != 1 || len(pipe.Cmds[0].Args) != 1 {
		return false
	}
	_, ok := pipe.Cmds[0].Args[0].(*parse.DotNode)
	return ok
}

// readsValues reports whether something in the pipeline may be a value, the pod, or the dot
// with all of them.
func readsValues(pipe *parse.PipeNode) bool {
	for _, cmd := range pipe.Cmds {
		for _, arg := range cmd.Args {
			switch n := arg.(type) {
			case *parse.FieldNode:
				if _, ok := sources[n.Ident[0]]; ok || n.Ident[0] == "Pod" {
					return true
				}
			case *parse.VariableNode:
				// $ is the dot of the beginning.
				if n.Ident[0] == "$" {
					return true
				}
			case *parse.PipeNode:
				if readsValues(n) {
					return true
				}
			case *parse.DotNode, *parse.ChainNode:
				return true
			}
		}
	}
	return false
}
