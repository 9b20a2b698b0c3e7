package driver

// Capabilities are the optional interfaces that a driver implements. Fields of the
// others are nil.
type Capabilities struct {
	Featurer     Featurer
	Translator   Translator
	Templater    Templater
	Imager       Imager
	ImageChecker ImageChecker
	Checker      Checker
	Finder       Finder
}

// CapabilitiesOf returns the optional interfaces that the driver implements.
func CapabilitiesOf(d Driver) Capabilities {
	var c Capabilities
	c.Featurer, _ = d.(Featurer)
	c.Translator, _ = d.(Translator)
	c.Templater, _ = d.(Templater)
	c.Imager, _ = d.(Imager)
	c.ImageChecker, _ = d.(ImageChecker)
	c.Checker, _ = d.(Checker)
	c.Finder, _ = d.(Finder)
	return c
}
