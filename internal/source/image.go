package source

import (
	"slices"
	"strings"
)

// olderClass is the class whose images Open Service Mesh configured under names
// of their own.
const olderClass = "envoy"

// candidate is a value that may be chosen. The path is that of the user's field,
// or empty if the value is not from the MeshConfig.
type candidate struct{ path, value string }

// choose returns the first value that is not empty. A later one that the user has
// set and that says something else is a Problem.
func (r *reader) choose(candidates []candidate) string {
	var chosen candidate
	for _, c := range candidates {
		switch {
		case c.value == "" || c.value == chosen.value:
		case chosen.value == "":
			chosen = c
		case c.path != "":
			r.add(ReasonConflict, c.path, "%q is not used, because %s is %q; remove one of the two", c.value, chosen.path, chosen.value)
		}
	}
	return chosen.value
}

// images resolves the images of a class. Entry is its place in sidecarDrivers, or
// -1 if it has none. What is the whole mesh's is the default class's alone.
func (r *reader) images(name string, entry int, isDefault bool) (image, windowsImage, initImage string) {
	var linux, windows, initial []candidate
	if isDefault {
		sidecar := &r.spec.Sidecar
		linux = append(linux, candidate{"spec.sidecar.sidecarImage", sidecar.SidecarImage})
		windows = append(windows,
			candidate{"spec.sidecar.sidecarWindowsImage", sidecar.SidecarWindowsImage},
			candidate{"spec.sidecar.SidecarImageWindowsImage", sidecar.ProposalWindowsImage},
			candidate{"spec.sidecar.sidecarImageWindowsImage", sidecar.EdgeWindowsImage},
			candidate{"spec.sidecar.sideWindowsImage", sidecar.EdgeV1alpha1WindowsImage})
		initial = append(initial, candidate{"spec.sidecar.initContainerImage", sidecar.InitContainerImage})
	}
	if entry >= 0 {
		driver := &r.spec.Sidecar.SidecarDrivers[entry]
		linux = append(linux, candidate{driverPath(entry, "sidecarImage"), driver.SidecarImage})
		windows = append(windows,
			candidate{driverPath(entry, "sidecarWindowsImage"), driver.SidecarWindowsImage},
			candidate{driverPath(entry, "SidecarImageWindowsImage"), driver.ProposalWindowsImage},
			candidate{driverPath(entry, "sidecarImageWindowsImage"), driver.EdgeWindowsImage})
		initial = append(initial, candidate{driverPath(entry, "initContainerImage"), driver.InitContainerImage})
	}
	if name == olderClass {
		linux = append(linux, candidate{"spec.sidecar.envoyImage", r.spec.Sidecar.EnvoyImage})
		windows = append(windows, candidate{"spec.sidecar.envoyWindowsImage", r.spec.Sidecar.EnvoyWindowsImage})
	}
	r.checkInitImages(initial)
	r.checkImages(name, linux, windows)
	if isDefault {
		linux = append(linux, candidate{value: r.opts.Env("OSM_DEFAULT_SIDECAR_IMAGE")})
		windows = append(windows, candidate{value: r.opts.Env("OSM_DEFAULT_SIDECAR_WINDOWS_IMAGE")})
		initial = append(initial, candidate{value: r.opts.Env("OSM_DEFAULT_INIT_CONTAINER_IMAGE")})
	}
	linux = append(linux, candidate{value: r.opts.BuiltinImage(name, "linux")})
	windows = append(windows, candidate{value: r.opts.BuiltinImage(name, "windows")})
	initial = append(initial, candidate{value: r.opts.InitImage})
	return r.choose(linux), r.choose(windows), r.choose(initial)
}

// checkImages tells of images with which the driver of a class cannot work.
func (r *reader) checkImages(class string, lists ...[]candidate) {
	if r.opts.CheckImage == nil {
		return
	}
	for _, image := range slices.Concat(lists...) {
		if image.value == "" {
			continue
		}
		if err := r.opts.CheckImage(class, image.value); err != nil {
			r.add(ReasonInvalid, image.path, "%v", err)
		}
	}
}

// checkInitImages tells those who bring their MeshConfig along that the init
// container is another one now, before every pod of the mesh hangs in it.
func (r *reader) checkInitImages(images []candidate) {
	for _, image := range images {
		name, _, _ := strings.Cut(image.value, "@")
		if colon := strings.LastIndex(name, ":"); colon > strings.LastIndex(name, "/") {
			name = name[:colon]
		}
		for _, foreign := range []string{"openservicemesh/init", "flomesh/init", "flomesh/osm-edge-sidecar-init", "flomesh/osm-edge-sidecar-init-ubi8"} {
			if name == foreign || strings.HasSuffix(name, "/"+foreign) {
				r.add(ReasonInvalid, image.path,
					"%q is the init container of another mesh and does not bring Outrigger's agent, so pods cannot start with it; remove the field", image.value)
			}
		}
	}
}
