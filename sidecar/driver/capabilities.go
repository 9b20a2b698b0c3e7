package driver

// Capabilities are the optional interfaces that a driver implements. Fields of the
// others are nil or false.
type Capabilities struct {
	Featurer     Featurer
	Translator   Translator
	Templater    Templater
	Imager       Imager
	ImageChecker ImageChecker
	Releaser     Releaser
	Checker      Checker
	Finder       Finder
	Redirector   Redirector
	// Proxyless reports whether the driver's pods run no proxy.
	Proxyless bool
}

// CapabilitiesOf returns the optional interfaces that the driver implements.
func CapabilitiesOf(d Driver) Capabilities {
	var c Capabilities
	c.Featurer, _ = d.(Featurer)
	c.Translator, _ = d.(Translator)
	c.Templater, _ = d.(Templater)
	c.Imager, _ = d.(Imager)
	c.ImageChecker, _ = d.(ImageChecker)
	c.Releaser, _ = d.(Releaser)
	c.Checker, _ = d.(Checker)
	c.Finder, _ = d.(Finder)
	if p, ok := d.(Proxyless); ok {
		c.Proxyless = p.Proxyless()
	}
	c.Redirector, _ = d.(Redirector)
	return c
}
