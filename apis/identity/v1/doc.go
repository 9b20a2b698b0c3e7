// Package identityv1 is the API of the controller's signing service, by which the
// agents in pods get their certificates. identity.proto says what it promises.
package identityv1

const (
	// Audience is the audience of the tokens that the service takes.
	Audience = "outrigger"
	// Port is where the service listens.
	Port = 15129
)
