// Package sidecar is the registry of drivers, and the adapter between the control plane
// and the driver that serves a pod, as database/sql is to its drivers. A driver
// registers itself in its init function, and a program selects its drivers by importing
// them.
package sidecar

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

var (
	driversMutex sync.RWMutex
	// drivers is keyed by the name in lower case.
	drivers = make(map[string]*registered)
	// engineDriver is the installed default.
	engineDriver *registered
)

// registered is a driver with the optional interfaces that it implements.
type registered struct {
	driver.Driver
	driver.Capabilities
}

// Register makes a driver available under a name, which is case-insensitive. It panics
// if the driver is nil or the name is taken.
func Register(name string, d driver.Driver) {
	driversMutex.Lock()
	defer driversMutex.Unlock()
	if d == nil {
		panic("sidecar: Register driver is nil")
	}
	key := strings.ToLower(name)
	if _, dup := drivers[key]; dup {
		panic("sidecar: Register called twice for driver " + name)
	}
	drivers[key] = &registered{d, driver.CapabilitiesOf(d)}
}

// Drivers returns the names of the registered drivers, in lower case and sorted.
func Drivers() []string {
	driversMutex.RLock()
	defer driversMutex.RUnlock()
	return slices.Sorted(maps.Keys(drivers))
}

// Lookup returns the driver of that name. The error for an unknown name lists the
// registered names.
func Lookup(name string) (driver.Driver, error) {
	d, err := lookup(name)
	if err != nil {
		return nil, err
	}
	return d.Driver, nil
}

// Capabilities returns the optional interfaces that the driver of that name implements.
// An unknown name is the same error as Lookup's.
func Capabilities(name string) (driver.Capabilities, error) {
	d, err := lookup(name)
	if err != nil {
		return driver.Capabilities{}, err
	}
	return d.Capabilities, nil
}

func lookup(name string) (*registered, error) {
	driversMutex.RLock()
	d, ok := drivers[strings.ToLower(name)]
	driversMutex.RUnlock()
	if !ok {
		return nil, fmt.Errorf("sidecar: unknown driver %q (forgotten import?); registered are: %s",
			name, strings.Join(Drivers(), ", "))
	}
	return d, nil
}

// InstallDriver makes the driver of that name the default, which is used if no class is
// given. An unknown name is an error and changes nothing.
func InstallDriver(name string) error {
	d, err := lookup(name)
	if err != nil {
		return err
	}
	driversMutex.Lock()
	defer driversMutex.Unlock()
	engineDriver = d
	return nil
}

// InitDriver is the former name of InstallDriver.
func InitDriver(name string) error { return InstallDriver(name) }

// Patch calls Patch of the driver for Sidecar.Class of the InjectorContext in ctx, or
// of the default driver. The driver checks whether ctx has an InjectorContext.
func Patch(ctx context.Context) error {
	var class string
	if inj, err := driver.InjectorFrom(ctx); err == nil {
		class = inj.Sidecar.Class
	}
	d, err := choose(class)
	if err != nil {
		return err
	}
	return d.Patch(ctx)
}

// Start calls Start of the driver for SidecarClass of the ControllerContext in ctx, or
// of the default driver. The driver checks whether ctx has a ControllerContext.
func Start(ctx context.Context) (health.Probes, error) {
	var class string
	if ctrl, err := driver.ControllerFrom(ctx); err == nil {
		class = ctrl.SidecarClass
	}
	d, err := choose(class)
	if err != nil {
		return nil, err
	}
	return d.Start(ctx)
}

func choose(class string) (*registered, error) {
	if class != "" {
		return lookup(class)
	}
	driversMutex.RLock()
	defer driversMutex.RUnlock()
	if engineDriver == nil {
		return nil, errors.New("sidecar: unknown driver (forgot to init?)")
	}
	return engineDriver, nil
}

// Image returns the driver's default image for pods of the operating system, "linux" or
// "windows", or "" if it has none.
func Image(name, os string) string {
	d, err := lookup(name)
	if err != nil || d.Imager == nil {
		return ""
	}
	return d.Imager.SidecarImage(os)
}

// CheckImage returns the driver's reason to reject an image of its proxy, or nil.
func CheckImage(name, image string) error {
	d, err := lookup(name)
	if err != nil || d.ImageChecker == nil {
		return nil
	}
	return d.ImageChecker.CheckImage(image)
}

// Releases returns what is known of the versions of a class's proxy, or nil if nothing is.
func Releases(class string) *driver.Releases {
	d, err := lookup(class)
	if err != nil || d.Releaser == nil {
		return nil
	}
	return d.Releaser.Releases()
}

// LackedByImage says what an image lacks of the features that the class's driver declares.
func LackedByImage(class, image string) []string {
	if known := Releases(class); known != nil {
		return known.LackedByImage(image)
	}
	return nil
}

// KeyExchange returns the strongest key exchange that a proxy of the class has by default, by the
// version that it reports, or "" if that is unknown.
func KeyExchange(class, version string) string {
	if known := Releases(class); known != nil {
		return known.KeyExchange(version)
	}
	return ""
}

// Features returns the optional features that the class's driver declares, or none if
// it declares none or does not exist. Any other required feature becomes a Problem of
// the object that requires it. Older supported versions of the proxy may lack some.
func Features(class string) []mesh.Feature {
	d, err := lookup(class)
	if err != nil || d.Featurer == nil {
		return nil
	}
	return d.Featurer.Features()
}

// IsProxyless reports whether the pods of the class run no proxy.
func IsProxyless(class string) bool {
	d, err := lookup(class)
	return err == nil && d.Proxyless
}

// TranslatesIPv6 reports whether the class's driver needs redirected IPv6 connections to be
// translated.
func TranslatesIPv6(class string) bool {
	d, err := lookup(class)
	return err == nil && d.Redirector != nil && d.Redirector.TranslatesIPv6()
}

// PodTemplates returns the pod templates of the registered drivers by driver name.
func PodTemplates() map[string]string {
	driversMutex.RLock()
	defer driversMutex.RUnlock()
	templates := make(map[string]string)
	for name, d := range drivers {
		if d.Templater != nil {
			templates[name] = d.Templater.PodTemplate()
		}
	}
	return templates
}
