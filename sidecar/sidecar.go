// Package sidecar is the register of drivers and the adapter between the
// control plane and the one that serves a pod, as database/sql is to its
// drivers. A driver registers itself from its init function, and a program
// chooses its drivers by importing them.
package sidecar

import (
	"context"
	"errors"
	"fmt"
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
	drivers = make(map[string]*Driver)
	// engineDriver is the installed default.
	engineDriver *Driver
)

// Driver is a registered driver with the optional interfaces that it implements.
type Driver struct {
	driver.Driver
	driver.Capabilities
}

// Register makes a driver available by a name, in which upper and lower case
// are the same. It panics if the driver is nil or the name is taken.
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
	drivers[key] = &Driver{d, driver.CapabilitiesOf(d)}
}

// Drivers returns the names of the registered drivers, in lower case and sorted.
func Drivers() []string {
	driversMutex.RLock()
	defer driversMutex.RUnlock()
	names := make([]string, 0, len(drivers))
	for name := range drivers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Lookup returns the driver of that name. The error of an unknown name lists
// the names that there are.
func Lookup(name string) (*Driver, error) {
	driversMutex.RLock()
	d, ok := drivers[strings.ToLower(name)]
	driversMutex.RUnlock()
	if !ok {
		return nil, fmt.Errorf("sidecar: unknown driver %q (forgotten import?); registered are: %s",
			name, strings.Join(Drivers(), ", "))
	}
	return d, nil
}

// InstallDriver makes the driver of that name the default, which serves where
// no class is given. An unknown name is an error and changes nothing.
func InstallDriver(name string) error {
	d, err := Lookup(name)
	if err != nil {
		return err
	}
	driversMutex.Lock()
	defer driversMutex.Unlock()
	engineDriver = d
	return nil
}

// InitDriver is InstallDriver by its first name.
func InitDriver(name string) error { return InstallDriver(name) }

// Patch calls the Patch of the driver that the InjectorContext in ctx names by
// its Sidecar.Class, or of the default. That ctx has an InjectorContext at all is
// for the driver to check.
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

// Start calls the Start of the driver that the ControllerContext in ctx names
// by its SidecarClass, or of the default. That ctx has a ControllerContext at
// all is for the driver to check.
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

func choose(class string) (*Driver, error) {
	if class != "" {
		return Lookup(class)
	}
	driversMutex.RLock()
	defer driversMutex.RUnlock()
	if engineDriver == nil {
		return nil, errors.New("sidecar: unknown driver (forgot to init?)")
	}
	return engineDriver, nil
}

// Image returns the image that the driver of that name has built in for pods of
// the operating system, "linux" or "windows", or "" if it has none.
func Image(name, os string) string {
	d, err := Lookup(name)
	if err != nil || d.Imager == nil {
		return ""
	}
	return d.Imager.SidecarImage(os)
}

// CheckImage returns what the driver of that name has against an image of its proxy, nil
// if nothing.
func CheckImage(name, image string) error {
	d, err := Lookup(name)
	if err != nil || d.ImageChecker == nil {
		return nil
	}
	return d.ImageChecker.CheckImage(image)
}

// Features returns what the proxies of a class can do beyond what every driver must:
// what the driver of that name declares, and nothing if it declares nothing or there is
// no such driver. What is asked of a class beyond that is a Problem of the object that
// asks.
func Features(class string) []mesh.Feature {
	d, err := Lookup(class)
	if err != nil || d.Featurer == nil {
		return nil
	}
	return d.Featurer.Features()
}

// PodTemplates returns the pod templates that the registered drivers ship, by
// the driver's name.
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
