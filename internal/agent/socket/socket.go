// Package socket asks the kernel about the pod's sockets: whose they are, where the proxy
// listens, and which processes have them. It listens for the agent's own user only, and beside
// the proxy. It knows no process of the agent's, and imports no other room.
package socket
