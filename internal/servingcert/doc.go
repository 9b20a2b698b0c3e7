// Package servingcert keeps the serving certificate of the injector's webhook
// and the caBundle of its MutatingWebhookConfiguration right, so that the API
// server can call the webhook at any moment: at the first start, while the
// certificate is renewed and while its CA is replaced.
//
// An [Issuer] says where certificates come from: a CA of the injector's own in a
// Secret, the Secret of cert-manager, files, or a CertificateSigningRequest. The
// [Manager] runs one of them, gives the TLS server its certificate, writes the
// caBundle and answers the readiness probe with a TLS call to the webhook itself.
//
// A new CA never meets an API server that does not know it. The Manager first
// adds the new CA to the caBundle, then waits until it has seen it there for
// [Options.PropagationDelay], and only then serves the certificate of the new CA.
// CAs are added at once and taken away late, so replicas that learn of a change
// one after the other do not undo each other's work.
//
// The package knows nothing of injection and imports nothing else of this module.
package servingcert
