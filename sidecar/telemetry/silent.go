package telemetry

import "time"

// Silent is the field connection_close_details of an access log's line about a connection of the
// application to an HTTP port that was silent for SilentAfter or longer and has ended without a
// byte from its client. Such a client waits for a server that speaks first, or has opened the
// connection in advance and never used it, so the line has no reason: nothing was refused.
const Silent = "the client has waited silently; if its server speaks first, the port needs the appProtocol tcp-server-first"

// SilentAfter is how long an application that speaks first takes at most before it does.
const SilentAfter = 2 * time.Second
