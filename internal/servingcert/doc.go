// Package servingcert maintains the serving certificate of the injector's webhook
// and the caBundle of its MutatingWebhookConfiguration, so that the API server can
// call the webhook at any time: at the first start, and while the certificate is
// renewed or its CA is replaced.
//
// An [Issuer] is the source of certificates: the injector's own CA in a Secret, the
// Secret of cert-manager, or files. The [Manager] runs one of them, provides the
// certificate to the TLS server, writes the caBundle and answers the readiness probe
// with a TLS call to the webhook itself.
//
// The certificate of a new CA is only served once the API servers trust that CA: the
// Manager adds the CA to the caBundle, waits until it has been there for
// [Options.PropagationDelay], and then serves the certificate. CAs are added at once
// and removed late, so that replicas that notice a change at different times do not
// undo each other's changes.
//
// The package knows nothing about injection and the mesh.
package servingcert
