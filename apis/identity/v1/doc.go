// Package identityv1 is the API of the controller's signing service, from which the agents
// in pods obtain their certificates. identity.proto documents it.
package identityv1

const (
	// Audience is the audience of the tokens that the service accepts.
	Audience = "outrigger"
	// Port is the port that the service listens on.
	Port = 15129
)
