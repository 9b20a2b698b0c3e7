package servingcert

import "time"

// CABundle returns the PEM of the CAs that clients must trust, sorted, or nil before the
// first certificate has been obtained.
func (m *Manager) CABundle() []byte {
	wanted := m.publisher.wanted.Load()
	if wanted == nil {
		return nil
	}
	return wanted.Encode()
}

// Expiry returns when the served certificate expires, or the zero time before the first
// has been obtained.
func (m *Manager) Expiry() time.Time {
	serving := m.publisher.serving.Load()
	if serving == nil {
		return time.Time{}
	}
	return serving.expiry
}
