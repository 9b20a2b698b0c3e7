package source

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// ServerCertificate returns the fact of a Secret that gateways may refer to, and the certificate with its
// private key, which is no part of the fact. The fact has a Flaw if the certificate cannot be used, and
// the KeyPair is then empty. It returns false for a Secret of another type than kubernetes.io/tls.
func ServerCertificate(secret *corev1.Secret) (fact.Fact, driver.KeyPair, bool) {
	if secret.Type != corev1.SecretTypeTLS {
		return fact.Fact{}, driver.KeyPair{}, false
	}
	content := new(fact.ServerCertificate)
	pair, leaf, err := readKeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		content.Flaw = &fact.Flaw{Reason: fact.ReasonInvalidCertificateRef, Message: fmt.Sprintf("Secret %s/%s: %v", secret.Namespace, secret.Name, err)}
	} else {
		content.Chain = pair.Digest
		for _, name := range leaf.DNSNames {
			if host := strings.ToLower(name); isDNSName(strings.TrimPrefix(host, "*.")) {
				content.Hosts = append(content.Hosts, host)
			}
		}
	}
	return fact.Fact{Object: SecretRef(mesh.Name{Namespace: secret.Namespace, Name: secret.Name}), Content: mesh.Seal(content)}, pair, true
}

// AssumedCertificates returns facts of the Secrets to which Gateways among the facts refer, as if each had a
// usable certificate: for readers of a cluster who have no right to read Secrets, and need none.
func AssumedCertificates(facts []fact.Fact) []fact.Fact {
	var assumed []fact.Fact
	seen := map[mesh.Name]bool{}
	for _, f := range facts {
		g, ok := f.Content.(*fact.Gateway)
		if !ok {
			continue
		}
		for i := range g.Listeners {
			for _, ref := range g.Listeners[i].Certificates {
				if !seen[ref.Secret] {
					seen[ref.Secret] = true
					content := &fact.ServerCertificate{Chain: mesh.DigestOf(ref.Secret)}
					assumed = append(assumed, fact.Fact{Object: SecretRef(ref.Secret), Content: mesh.Seal(content)})
				}
			}
		}
	}
	return assumed
}

// SecretRef returns the reference to a Secret.
func SecretRef(name mesh.Name) mesh.ObjectRef {
	return mesh.ObjectRef{APIVersion: "v1", Kind: kindSecret, Namespace: name.Namespace, Name: name.Name}
}

// Sizes of private keys and certificate chains: proxies refuse shorter keys, and bounds keep one Secret
// from being the cost of many.
const (
	minRSABits = 2048
	maxRSABits = 8192
	maxChain   = 16
	// maxNames is the number of names of a certificate: each can be a filter chain or a rule of the proxies.
	maxNames = 256
)

// readKeyPair reads a certificate and its private key, and writes both again: what else is in their texts
// reaches no proxy. The error never quotes them.
func readKeyPair(chain, key []byte) (driver.KeyPair, *x509.Certificate, error) {
	if len(chain) == 0 || len(key) == 0 {
		return driver.KeyPair{}, nil, fmt.Errorf("%s or %s is missing or empty; write a certificate and its private key as PEM", corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
	certs, err := pki.Parse(chain)
	if err != nil {
		return driver.KeyPair{}, nil, fmt.Errorf("%s is no certificate as PEM; correct it", corev1.TLSCertKey)
	}
	if len(certs) > maxChain {
		return driver.KeyPair{}, nil, fmt.Errorf("%s has %d certificates, more than %d; remove those that are not the leaf's intermediates", corev1.TLSCertKey, len(certs), maxChain)
	}
	if names := len(certs[0].DNSNames); names > maxNames {
		return driver.KeyPair{}, nil, fmt.Errorf("the certificate has %d names, more than %d; divide them among several", names, maxNames)
	}
	// The library finds the key among other blocks, such as the parameters of a curve.
	encoded := pki.Encode(certs...)
	pair, err := tls.X509KeyPair(encoded, key)
	if err != nil {
		return driver.KeyPair{}, nil, fmt.Errorf("%s is no private key of the first certificate of %s; correct one of them", corev1.TLSPrivateKeyKey, corev1.TLSCertKey)
	}
	if err := checkKey(pair.PrivateKey); err != nil {
		return driver.KeyPair{}, nil, err
	}
	text, err := pki.EncodeKey(pair.PrivateKey)
	if err != nil {
		return driver.KeyPair{}, nil, errors.New("the private key cannot be encoded; make another one")
	}
	return driver.KeyPair{Chain: encoded, Key: text, Digest: mesh.DigestBytes(encoded)}, certs[0], nil
}

// checkKey refuses keys that one of the proxies refuses.
func checkKey(key any) error {
	switch key := key.(type) {
	case *rsa.PrivateKey:
		if bits := key.N.BitLen(); bits < minRSABits || bits > maxRSABits {
			return fmt.Errorf("the RSA key has %d bits; use one of %d to %d", bits, minRSABits, maxRSABits)
		}
		return nil
	case *ecdsa.PrivateKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() && key.Curve != elliptic.P521() {
			return fmt.Errorf("the key's curve is %s; use P-256, P-384 or P-521", key.Curve.Params().Name)
		}
		return nil
	}
	return errors.New("the key is neither RSA nor ECDSA; use one of these")
}
