package lab

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// capabilities are the names of Linux's capabilities, in the order of their numbers.
var capabilities = []string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
	"LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
	"SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
	"SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
	"MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
	"CHECKPOINT_RESTORE",
}

// defaultCapabilities are the container runtimes' default capabilities of a container.
var defaultCapabilities = []string{
	"CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP",
	"NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
}

// privilege is the user and the privileges of a container's processes.
type privilege struct {
	uid, gid     uint32
	groups       []uint32
	capabilities map[int]bool
	noNewPrivs   bool
	readOnlyRoot bool
}

// privilegeOf reads the security contexts of a container and its pod. The default user is
// root, since a lab's image has no user. Seccomp, AppArmor and SELinux are not supported.
func privilegeOf(pod *corev1.Pod, container *corev1.Container) (*privilege, error) {
	p := &privilege{capabilities: make(map[int]bool)}
	ofPod, own := pod.Spec.SecurityContext, container.SecurityContext
	if ofPod == nil {
		ofPod = new(corev1.PodSecurityContext)
	}
	if own == nil {
		own = new(corev1.SecurityContext)
	}
	first := func(ids ...*int64) uint32 {
		for _, id := range ids {
			if id != nil {
				return uint32(*id)
			}
		}
		return 0
	}
	p.uid, p.gid = first(own.RunAsUser, ofPod.RunAsUser), first(own.RunAsGroup, ofPod.RunAsGroup)
	for _, group := range ofPod.SupplementalGroups {
		p.groups = append(p.groups, uint32(group))
	}
	if ofPod.FSGroup != nil {
		p.groups = append(p.groups, uint32(*ofPod.FSGroup))
	}
	notRoot := ofPod.RunAsNonRoot
	if own.RunAsNonRoot != nil {
		notRoot = own.RunAsNonRoot
	}
	if notRoot != nil && *notRoot && p.uid == 0 {
		return nil, errors.New("it has runAsNonRoot and would run as root; give it a runAsUser")
	}
	p.noNewPrivs = own.AllowPrivilegeEscalation != nil && !*own.AllowPrivilegeEscalation
	p.readOnlyRoot = own.ReadOnlyRootFilesystem != nil && *own.ReadOnlyRootFilesystem

	names := defaultCapabilities
	if own.Privileged != nil && *own.Privileged {
		names = capabilities
	}
	if own.Capabilities != nil {
		add, drop := capabilityNames(own.Capabilities.Add), capabilityNames(own.Capabilities.Drop)
		for _, name := range slices.Concat(add, drop) {
			if name != "ALL" && !slices.Contains(capabilities, name) {
				return nil, fmt.Errorf("its securityContext has the unknown capability %s", name)
			}
		}
		switch {
		case slices.Contains(add, "ALL"):
			names = capabilities
		case slices.Contains(drop, "ALL"):
			names = nil
		}
		names = slices.Concat(slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(drop, name) }), add)
	}
	for _, name := range names {
		if number := slices.Index(capabilities, name); number >= 0 {
			p.capabilities[number] = true
		}
	}
	return p, nil
}

func capabilityNames(of []corev1.Capability) []string {
	var names []string
	for _, c := range of {
		names = append(names, strings.TrimPrefix(strings.ToUpper(string(c)), "CAP_"))
	}
	return names
}

// drop removes capabilities from the processes that the current thread will start. The
// thread itself keeps them until then.
func (p *privilege) drop() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("dropping ambient capabilities: %w", err)
	}
	for number := 0; ; number++ {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(number), 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break
		}
		if err == nil && has == 1 && !p.capabilities[number] {
			err = unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(number), 0, 0, 0)
		}
		if err != nil {
			return fmt.Errorf("dropping capability %d: %w", number, err)
		}
	}
	if p.noNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("setting no_new_privs: %w", err)
		}
	}
	return nil
}
