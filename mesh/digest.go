package mesh

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// Digest is the first 16 bytes of the SHA-256 of a part's content. Equal content
// has the same digest on every replica and after every restart.
type Digest [16]byte

// String returns the digest as 32 hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText returns what String does.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// IsZero reports whether it is the digest of nothing: no content has it.
func (d Digest) IsZero() bool { return d == Digest{} }

// Digester is a part with a digest of its content.
type Digester interface {
	Digest() Digest
}

// DigestOf returns the digest of the exported fields of v, by way of its JSON. It
// panics on a value that has no JSON form, which no type of this package is.
func DigestOf(v any) Digest {
	content, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("mesh: %T has no digest: %v", v, err))
	}
	return DigestBytes(content)
}

// DigestBytes returns the digest of content.
func DigestBytes(content []byte) Digest {
	sum := sha256.Sum256(content)
	return Digest(sum[:16])
}

// JoinDigests returns a digest of the digests in their order.
func JoinDigests(digests ...Digest) Digest {
	content := make([]byte, 0, 256)
	for _, d := range digests {
		content = append(content, d[:]...)
	}
	return DigestBytes(content)
}

// appendKeyed appends a key, with its length so that no two lists of keys look
// alike, and a digest.
func appendKeyed(content []byte, key string, d Digest) []byte {
	content = binary.AppendUvarint(content, uint64(len(key)))
	content = append(content, key...)
	return append(content, d[:]...)
}
