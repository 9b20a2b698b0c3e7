// Package identity has the pod's identity: it makes the private key, has the certificate signed
// by the controller or takes it from the kubelet, renews it, keeps key, chain and trust bundle as
// files, and serves them to the proxy. Keys leave it only as these files and by SecretServer. It
// is also the pod's authenticated way to the controller. It imports the kit only, and knows
// neither the proxy's process nor its files.
package identity
