package inject

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
)

// maxList bounds the entries of a list in an annotation.
const maxList = 1024

// maxAnnotation bounds the value of an annotation, in bytes.
const maxAnnotation = 16 << 10

// found is the value of an annotation and where it was found, for error messages.
type found struct {
	value string
	from  origin
	ok    bool
}

// origin says where a value was found. It is put together only for messages.
type origin struct{ what, key, of string }

func (o origin) String() string { return o.what + o.key + o.of }

// podAnnotation is the origin of a pod's annotation.
func podAnnotation(key string) origin { return origin{what: "pod annotation ", key: key} }

// lookup finds an annotation: on the pod, as an equivalent Istio annotation of the
// pod, or on the namespace, in this order.
func (c *candidate) lookup(key string) found {
	if f := c.ofPod(key); f.ok {
		return f
	}
	if v, ok := c.namespace.Annotations[key]; ok {
		return found{v, origin{"annotation ", key, " of namespace " + c.namespace.Name}, true}
	}
	return found{}
}

// ofPod finds an annotation on the pod, or as an equivalent Istio annotation of the pod.
func (c *candidate) ofPod(key string) found {
	if f := c.onPod(key); f.ok {
		return f
	}
	return c.istio.equal[key]
}

// onPod finds an annotation on the pod.
func (c *candidate) onPod(key string) found {
	v, ok := c.pod.Annotations[key]
	return found{v, podAnnotation(key), ok}
}

func (f found) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %s", f.from, fmt.Sprintf(format, args...))
}

func (f found) bool() (bool, error) {
	switch strings.ToLower(f.value) {
	case "true", "yes", "enabled":
		return true, nil
	case "false", "no", "disabled":
		return false, nil
	}
	return false, f.errorf("%q must be true, yes, enabled, false, no or disabled", f.value)
}

// maxConcurrency is the MeshConfig's limit too.
const maxConcurrency = 256

// concurrency returns a number of worker threads; 0 means as many as the CPU limit.
func (f found) concurrency() (int32, error) {
	n, err := strconv.ParseUint(f.value, 10, 31)
	if err != nil || n > maxConcurrency {
		return 0, f.errorf("%q is not a number of worker threads; write a number from 0 to %d, where 0 means as many as the CPU limit", f.value, maxConcurrency)
	}
	return int32(n), nil
}

// parseConnections returns how many connections one address may have; -1 means
// unlimited.
func parseConnections(value string) (int, error) {
	value = strings.TrimSpace(value)
	if value == "unlimited" {
		return -1, nil
	}
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q must be a number from 1, or unlimited", value)
	}
	return int(n), nil
}

func split(value string) ([]string, error) {
	if len(value) > maxAnnotation {
		return nil, fmt.Errorf("the list is longer than %d bytes", maxAnnotation)
	}
	var items []string
	for item := range strings.SplitSeq(value, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			return nil, fmt.Errorf("%q has an empty entry; write a list such as a,b", value)
		}
		items = append(items, item)
	}
	if len(items) > maxList {
		return nil, fmt.Errorf("the list has %d entries, more than %d", len(items), maxList)
	}
	return items, nil
}

func parsePorts(value string) ([]int, error) {
	items, err := split(value)
	if err != nil {
		return nil, err
	}
	ports := make([]int, 0, len(items))
	for _, item := range items {
		port, err := strconv.ParseUint(item, 10, 16)
		if err != nil || port == 0 {
			return nil, fmt.Errorf("%q is not a port; ports are numbers from 1 to 65535", item)
		}
		ports = append(ports, int(port))
	}
	return ports, nil
}

func parseRanges(value string) ([]string, error) {
	items, err := split(value)
	if err != nil {
		return nil, err
	}
	for i, item := range items {
		prefix, err := netip.ParsePrefix(item)
		if err != nil {
			return nil, fmt.Errorf("%q is not a range of addresses; write it as 10.0.0.0/8 or fd00::/8", item)
		}
		items[i] = prefix.Masked().String()
	}
	return items, nil
}

func parseInterfaces(value string) ([]string, error) {
	items, err := split(value)
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		// Linux's IFNAMSIZ without the terminating zero byte.
		if len(item) > 15 || strings.ContainsAny(item, "/ \t\n\"") {
			return nil, fmt.Errorf("%q is not the name of a network interface", item)
		}
	}
	return items, nil
}

var logLevels = map[string]string{
	"trace": "trace", "debug": "debug", "info": "info", "warning": "warning", "warn": "warning",
	"error": "error", "critical": "critical", "off": "off",
}

// image rejects values that cannot be an image reference; the full syntax is left to
// the container runtime.
func (f found) image() (string, error) {
	if f.value == "" || len(f.value) > 512 || strings.ContainsFunc(f.value, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-/:@", r)
	}) {
		return "", f.errorf("%q is not a container image", f.value)
	}
	return f.value, nil
}

var resourceNames = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}

// resources overrides the mesh's resources by the annotations. Each amount is looked
// up on the pod, then on the namespace, as in osm-edge. In a pod with a budget of its own
// only the pod's annotations count, since other amounts would exceed it.
func (c *candidate) resources(mesh corev1.ResourceRequirements) (corev1.ResourceRequirements, error) {
	out, lookup := mesh, c.lookup
	if hasBudget(c.pod) {
		out, lookup = outsideBudget(mesh), func(key string) found {
			if strings.HasSuffix(key, "-"+string(corev1.ResourceEphemeralStorage)) {
				return c.lookup(key)
			}
			return c.ofPod(key)
		}
	}
	for _, list := range []struct {
		prefix string
		into   *corev1.ResourceList
	}{{metadata.LimitPrefix, &out.Limits}, {metadata.RequestPrefix, &out.Requests}} {
		cloned := false
		for _, name := range resourceNames {
			f := lookup(list.prefix + string(name))
			if !f.ok {
				continue
			}
			amount, err := parseAmount(f.value)
			if err != nil || amount.Sign() < 0 {
				return out, f.errorf("%q is not an amount of %s; write it as 100m, 0.5 or 128Mi", f.value, name)
			}
			if !cloned {
				copied := list.into.DeepCopy()
				if copied == nil {
					copied = corev1.ResourceList{}
				}
				*list.into, cloned = copied, true
			}
			(*list.into)[name] = amount
		}
	}
	// A limit of zero means none, but Kubernetes would reject any request beside it.
	out.Limits = maps.Clone(out.Limits)
	maps.DeleteFunc(out.Limits, func(_ corev1.ResourceName, limit resource.Quantity) bool { return limit.IsZero() })
	for name, request := range out.Requests {
		if limit, ok := out.Limits[name]; ok && request.Cmp(limit) > 0 {
			return out, fmt.Errorf("sidecar resources: the request of %s %s is more than its limit %s; see the annotations %s%s and %s%s",
				request.String(), name, limit.String(), metadata.LimitPrefix, name, metadata.RequestPrefix, name)
		}
	}
	return out, nil
}

// parseAmount is resource.ParseQuantity with bounded input: for 1e-100000000 that
// function takes most of a minute.
func parseAmount(value string) (resource.Quantity, error) {
	exponent := strings.TrimLeft(value[strings.LastIndexAny(value, "eE")+1:], "+-")
	if len(value) > 32 || len(exponent) > 2 && strings.ContainsAny(value, "eE") {
		return resource.Quantity{}, resource.ErrFormatWrong
	}
	return resource.ParseQuantity(value)
}

// maxSeconds is one day; longer times are taken for mistakes.
const maxSeconds = 24 * 60 * 60

// seconds returns the number of seconds in an annotation, or the mesh's setting, which
// may be nil.
func (c *candidate) seconds(key string, mesh *int32) (*int32, error) {
	f := c.lookup(key)
	if !f.ok {
		return mesh, nil
	}
	n, err := strconv.ParseUint(f.value, 10, 31)
	if err != nil || n > maxSeconds {
		return nil, f.errorf("%q is not a number of seconds from 0 to %d", f.value, maxSeconds)
	}
	seconds := int32(n)
	return &seconds, nil
}

// sortedSet sorts the values and removes duplicates; nil for none.
func sortedSet[T int | string](values []T) []T {
	if len(values) == 0 {
		return nil
	}
	slices.Sort(values)
	return slices.Compact(values)
}
