// SPIFFE IDs, which Pipy does not read from certificates.

// Returns the SPIFFE ID of the identity with the DNS name, or ''. A service account whose
// name is no DNS label appears there as a hash, which can't be reversed.
export function spiffe(name, trustDomain) {
  var suffix = '.sa.' + trustDomain
  if (!name.endsWith(suffix)) return ''
  var rest = name.substring(0, name.length - suffix.length)
  var dot = rest.lastIndexOf('.')
  if (dot <= 0) return ''
  return `spiffe://${trustDomain}/ns/${rest.substring(dot + 1)}/sa/${rest.substring(0, dot)}`
}
