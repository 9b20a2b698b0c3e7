package source

import (
	"fmt"
	"slices"
	"strings"
)

// classes resolves every class that is registered, configured or the default. A class
// without an entry in the MeshConfig uses its driver's defaults.
func (r *reader) classes(defaultClass string) map[string]classConfig {
	sidecar := &r.spec.Sidecar
	if !slices.Contains(r.opts.Classes, defaultClass) {
		r.add(ReasonUnknownClass, "spec.sidecar.sidecarClass",
			"no driver is registered for the default class %q, so pods that do not choose a class are rejected; registered drivers: %s",
			defaultClass, strings.Join(r.opts.Classes, ", "))
	}
	if !slices.Contains(r.opts.Classes, envoyClass) {
		for _, c := range []candidate{
			{"spec.sidecar.envoyImage", sidecar.EnvoyImage},
			{"spec.sidecar.envoyWindowsImage", sidecar.EnvoyWindowsImage},
		} {
			if c.value != "" {
				r.add(ReasonNoEffect, c.path, "%s", inertMessage("no driver named "+envoyClass+" is registered; remove it"))
			}
		}
	}

	entries := make(map[string]int)
	for i := range sidecar.SidecarDrivers {
		name := strings.ToLower(sidecar.SidecarDrivers[i].SidecarName)
		if first, taken := entries[name]; taken {
			r.add(ReasonInvalid, driverPath(i, "sidecarName"),
				"%q is also the name of sidecarDrivers[%d], which is used instead; merge the two", name, first)
			continue
		}
		entries[name] = i
		r.checkDriver(i, name)
	}

	classes := make(map[string]classConfig)
	resolve := func(name string) {
		if _, done := classes[name]; done {
			return
		}
		entry := -1
		if i, configured := entries[name]; configured {
			entry = i
		}
		classes[name] = r.class(name, entry, name == defaultClass)
	}
	resolve(defaultClass)
	for _, name := range r.opts.Classes {
		resolve(name)
	}
	for name := range entries {
		resolve(name)
	}
	return classes
}

// class resolves one class. Entry is its index in sidecarDrivers, or -1.
func (r *reader) class(name string, entry int, isDefault bool) classConfig {
	var class classConfig
	if entry >= 0 {
		configured := &r.spec.Sidecar.SidecarDrivers[entry]
		class.mtlsDisabled = configured.SidecarDisabledMTLS
		if validPort(configured.ProxyServerPort) {
			class.port = uint32(configured.ProxyServerPort)
		}
	}
	class.image, class.windowsImage, class.initImage = r.images(name, entry, isDefault)
	return class
}

// checkDriver checks entry i of sidecarDrivers.
func (r *reader) checkDriver(i int, name string) {
	entry := &r.spec.Sidecar.SidecarDrivers[i]
	if !slices.Contains(r.opts.Classes, name) {
		r.add(ReasonUnknownClass, driverPath(i, "sidecarName"),
			"no driver named %q is registered; correct the name, remove the entry or use a build with this driver; registered drivers: %s",
			entry.SidecarName, strings.Join(r.opts.Classes, ", "))
	}
	if entry.SidecarDisabledMTLS {
		r.add(ReasonMTLSDisabled, driverPath(i, "sidecarDisabledMTLS"),
			"mesh TLS is off for class %q: its pods speak plaintext within the mesh, unauthenticated and readable on the network; remove the field to turn it on",
			name)
	}
	if entry.ProxyServerPort != 0 && !validPort(entry.ProxyServerPort) {
		r.add(ReasonInvalid, driverPath(i, "proxyServerPort"),
			"%d is not a port; use 1 to 65535, or omit it for the driver's default", entry.ProxyServerPort)
	}
}

func driverPath(i int, field string) string {
	return fmt.Sprintf("spec.sidecar.sidecarDrivers[%d].%s", i, field)
}

func validPort(port int32) bool { return port >= 1 && port <= 65535 }
