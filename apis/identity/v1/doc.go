// Package identityv1 is the API of the controller's signing service, from which the agents
// in pods obtain their certificates. identity.proto documents it.
package identityv1
