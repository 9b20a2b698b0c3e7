package source

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// learnedPod begins the line of a pod without a service.
const learnedPod = "pod/"

// Learned returns the fact of a ConfigMap with the name fact.LearnedName, and false for all
// others. Its keys are service accounts. Each line of a value is NAMESPACE/NAME of a service,
// pod/NAMESPACE/NAME, or * for everything.
func Learned(configMap *corev1.ConfigMap) (fact.Fact, bool) {
	if configMap.Name != fact.LearnedName {
		return fact.Fact{}, false
	}
	n := &notes{object: learnedObject(configMap.Namespace)}
	content := &fact.Learned{Accounts: map[string]fact.Used{}}
	for _, account := range slices.Sorted(maps.Keys(configMap.Data)) {
		content.Accounts[account] = n.used("data["+account+"]", configMap.Data[account])
	}
	return fact.Fact{Object: n.object, Content: mesh.Seal(content), Problems: n.sorted()}, true
}

func learnedObject(namespace string) mesh.ObjectRef {
	return mesh.ObjectRef{APIVersion: "v1", Kind: "ConfigMap", Namespace: namespace, Name: fact.LearnedName}
}

// used parses a value.
func (n *notes) used(path, text string) fact.Used {
	var used fact.Used
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSpace(line)
		rest, isPod := strings.CutPrefix(line, learnedPod)
		namespace, name, _ := strings.Cut(rest, "/")
		switch {
		case line == "":
		case line == fact.Any:
			used.All = true
		case !isObjectLabel(namespace) || !isObjectName(name) || !isPod && !isObjectLabel(name):
			n.add(ReasonInvalid, path, "%q is no service, so the line is ignored; write NAMESPACE/NAME, pod/NAMESPACE/NAME or *", line)
		case isPod:
			used.Pods = append(used.Pods, mesh.Name{Namespace: namespace, Name: name})
		default:
			used.Services = append(used.Services, mesh.Name{Namespace: namespace, Name: name})
		}
	}
	return fact.Used{}.With(used)
}

// LearnedText returns the value of a service account in the ConfigMap that Learned reads.
func LearnedText(used fact.Used) string {
	if used.All {
		return fact.Any + "\n"
	}
	var b strings.Builder
	for _, name := range used.Services {
		b.WriteString(name.String() + "\n")
	}
	for _, name := range used.Pods {
		b.WriteString(learnedPod + name.String() + "\n")
	}
	return b.String()
}
