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

// MarshalText returns the same text as String.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// IsZero reports whether d is the zero Digest, which no content has.
func (d Digest) IsZero() bool { return d == Digest{} }

// Digester has a digest of its content.
type Digester interface {
	Digest() Digest
}

// DigestOf returns the digest of the JSON form of v, thus of its exported fields. It
// panics if v can't be marshaled, which does not happen for the types of this package.
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

// JoinDigests returns one digest of several, which depends on their order.
func JoinDigests(digests ...Digest) Digest {
	content := make([]byte, 0, 256)
	for _, d := range digests {
		content = append(content, d[:]...)
	}
	return DigestBytes(content)
}

// appendKeyed appends a key and a digest. The key's length goes first, so that different
// lists of keys never give the same bytes.
func appendKeyed(content []byte, key string, d Digest) []byte {
	content = binary.AppendUvarint(content, uint64(len(key)))
	content = append(content, key...)
	return append(content, d[:]...)
}
