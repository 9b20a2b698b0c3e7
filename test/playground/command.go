package playground

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/test/lab"
)

// isOfMesh reports whether the mesh has put a container into its pod.
func isOfMesh(container string) bool {
	return container == driver.ProxyContainer || container == driver.InitContainer
}

// target selects containers: those of a workload, or one of them.
type target struct{ namespace, workload, container string }

func (t target) matches(pod *corev1.Pod, container string) bool {
	return t == target{} || t.namespace == pod.Namespace && (t.workload == workloadOf(pod) || t.workload == pod.Name) && (t.container == "" || t.container == container)
}

// Commands are the commands and files of containers, as the user's flags give them.
type Commands struct {
	commands []command
	roots    []root
	// folders are those of the manifests.
	folders []string
}

type command struct {
	target
	args []string
	used bool
}

type root struct {
	target
	folder string
}

// parseTarget parses NAMESPACE/WORKLOAD or NAMESPACE/WORKLOAD/CONTAINER.
func parseTarget(text string) (target, error) {
	parts := strings.Split(text, "/")
	if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") {
		return target{}, fmt.Errorf("%q: give NAMESPACE/WORKLOAD or NAMESPACE/WORKLOAD/CONTAINER", text)
	}
	return target{parts[0], parts[1], strings.Join(parts[2:], "")}, nil
}

// AddCommand adds the command of a workload's containers, as
// NAMESPACE/WORKLOAD[/CONTAINER]=COMMAND. The command is split into words like a shell's, and
// not given to one.
func (c *Commands) AddCommand(text string) error {
	of, words, found := strings.Cut(text, "=")
	if !found {
		return fmt.Errorf("%q: give NAMESPACE/WORKLOAD=COMMAND, such as shop/web='python3 -m http.server 8080'", text)
	}
	t, err := parseTarget(of)
	if err != nil {
		return err
	}
	args, err := split(words)
	if err != nil {
		return fmt.Errorf("%q: %w", text, err)
	}
	if len(args) == 0 {
		return fmt.Errorf("%q: the command is empty", text)
	}
	c.commands = append(c.commands, command{target: t, args: args})
	return nil
}

// AddRoot adds a folder that is the root of containers: FOLDER for all of them, or
// NAMESPACE/WORKLOAD[/CONTAINER]=FOLDER.
func (c *Commands) AddRoot(text string) error {
	of, name, found := strings.Cut(text, "=")
	if !found {
		c.roots = append(c.roots, root{folder: text})
		return nil
	}
	t, err := parseTarget(of)
	if err != nil {
		return err
	}
	// The more special one comes first.
	c.roots = append([]root{{t, name}}, c.roots...)
	return nil
}

// split splits a command line into words: quotes and backslashes as in a shell, and nothing
// else.
func split(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord, quote := false, rune(0)
	escaped := false
	for _, r := range text {
		switch {
		case escaped:
			if quote == '"' && r != '"' && r != '\\' {
				word.WriteByte('\\')
			}
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			escaped, inWord = true, true
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, inWord = r, true
		case quote == 0 && strings.ContainsRune(" \t\n", r):
			if inWord {
				words = append(words, word.String())
				word.Reset()
			}
			inWord = false
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	if quote != 0 || escaped {
		return nil, fmt.Errorf("a quote or a backslash at its end is not closed")
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}

// hostImage is the lab's image of containers with this machine's files, and rootImage the
// beginning of those with a folder's.
const hostImage, rootImage = "lab/host", "lab/root/"

// images returns the lab's images. The folders of manifests are visible everywhere in the
// machine's files, even below /tmp.
func (c *Commands) images(folders []string) map[string]lab.Image {
	c.folders = folders
	host := lab.Image{Root: "/", Files: make(map[string]string)}
	for _, name := range folders {
		host.Files[name] = name
	}
	images := map[string]lab.Image{hostImage: host}
	for _, r := range c.roots {
		images[rootImage+r.folder] = lab.Image{Root: r.folder}
	}
	return images
}

// prepare gives a pod's containers their commands and files, and makes its persistent volumes
// empty ones.
func (c *Commands) prepare(pod *corev1.Pod) error {
	forget(pod)
	var unknown []string
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			of := &containers[i]
			if isOfMesh(of.Name) {
				continue
			}
			for n := range c.commands {
				if c.commands[n].matches(pod, of.Name) {
					of.Command, of.Args = c.commands[n].args, nil
					c.commands[n].used = true
				}
			}
			if len(of.Command) == 0 {
				unknown = append(unknown, fmt.Sprintf("container %s of %s/%s: the manifest has no command, and the lab does not run the image %s, which has its own; give it with --command %s/%s/%s='PROGRAM ARGUMENTS'",
					of.Name, pod.Namespace, workloadOf(pod), of.Image, pod.Namespace, workloadOf(pod), of.Name))
			}
			of.Image = hostImage
			for _, r := range c.roots {
				if r.matches(pod, of.Name) {
					of.Image = rootImage + r.folder
					break
				}
			}
			if of.Image == hostImage && len(of.Command) > 0 && c.hides(of.Command[0]) {
				unknown = append(unknown, fmt.Sprintf("container %s of %s/%s: its program %s is in a folder that each container has for itself; put it beside the manifests, or elsewhere", of.Name, pod.Namespace, workloadOf(pod), of.Command[0]))
			}
		}
	}
	if len(unknown) > 0 {
		return fmt.Errorf("%s", strings.Join(unknown, "\n"))
	}
	return nil
}

// forget replaces the claims of persistent volumes by empty volumes: also those of a StatefulSet's
// templates, which its pods mount without having them in the manifest.
func forget(pod *corev1.Pod) {
	empty := corev1.VolumeSource{EmptyDir: new(corev1.EmptyDirVolumeSource)}
	known := make(map[string]bool)
	for i := range pod.Spec.Volumes {
		of := &pod.Spec.Volumes[i]
		known[of.Name] = true
		if of.PersistentVolumeClaim != nil || of.Ephemeral != nil {
			of.VolumeSource = empty
		}
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for _, mount := range containers[i].VolumeMounts {
				if !known[mount.Name] && slices.ContainsFunc(pod.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "StatefulSet" }) {
					known[mount.Name] = true
					pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: mount.Name, VolumeSource: empty})
				}
			}
		}
	}
}

// hides reports whether a file of this machine is missing in containers with its files.
func (c *Commands) hides(file string) bool {
	below := func(folder string) bool { return strings.HasPrefix(file, strings.TrimSuffix(folder, "/")+"/") }
	return slices.ContainsFunc([]string{"/tmp", "/run", "/var/tmp", "/var/cache", "/var/lib", "/var/log", "/var/spool"}, below) && !slices.ContainsFunc(c.folders, below)
}

// unused returns the targets of commands that no container had.
func (c *Commands) unused() []string {
	var names []string
	for _, one := range c.commands {
		if !one.used {
			names = append(names, one.namespace+"/"+one.workload+strings.TrimSuffix("/"+one.container, "/"))
		}
	}
	return names
}
