package source

import (
	"slices"
	"strings"
)

// envoyClass is the class whose images Open Service Mesh configured in separate fields.
const envoyClass = "envoy"

// candidate is a value to choose from. The path is the user's field, or empty if the
// value is not from the MeshConfig.
type candidate struct{ path, value string }

// choose returns the first value that is not empty. A later user value that differs is a
// Problem.
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

// images resolves the images of a class. Entry is its index in sidecarDrivers, or -1.
// Mesh-wide images apply only to the default class.
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
	if name == envoyClass {
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

// checkImages adds a Problem for each image that the class's driver rejects, and for each feature
// of the driver that an image lacks.
func (r *reader) checkImages(class string, lists ...[]candidate) {
	for _, image := range slices.Concat(lists...) {
		if image.value == "" {
			continue
		}
		if r.opts.CheckImage != nil {
			if err := r.opts.CheckImage(class, image.value); err != nil {
				r.add(ReasonInvalid, image.path, "%v", err)
			}
		}
		if r.opts.LackedByImage != nil {
			for _, lacked := range r.opts.LackedByImage(class, image.value) {
				r.add(ReasonNotSupportedByProxy, image.path, "%s", lacked)
			}
		}
	}
}

// checkInitImages finds init containers of other meshes in migrated MeshConfigs, with
// which every pod would hang on startup.
func (r *reader) checkInitImages(images []candidate) {
	for _, image := range images {
		name, _, _ := strings.Cut(image.value, "@")
		if colon := strings.LastIndex(name, ":"); colon > strings.LastIndex(name, "/") {
			name = name[:colon]
		}
		for _, foreign := range []string{"openservicemesh/init", "flomesh/init", "flomesh/osm-edge-sidecar-init", "flomesh/osm-edge-sidecar-init-ubi8"} {
			if name == foreign || strings.HasSuffix(name, "/"+foreign) {
				r.add(ReasonInvalid, image.path,
					"%q is the init container of another mesh and lacks Outrigger's agent, so pods cannot start with it; remove the field", image.value)
			}
		}
	}
}
