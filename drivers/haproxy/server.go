package haproxy

import (
	"hash/fnv"
	"slices"
	"strconv"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// server is a server of a target: an endpoint that can be called.
type server struct {
	mesh.Endpoint
	Name, Address string
	// ID is the server's place on the ring of consistent hashing, 0 without it.
	ID uint32
	// Backup servers are used if all others are down.
	Backup bool
	// Ejected servers are taken out of use for a while when they fail.
	Ejected bool
}

// Servers returns the servers for a client in the zone. If endpoints of that zone are
// preferred, the others are backups. If endpoints are ejected and there are no such backups,
// each is a backup too, without ejection: when all have failed, all are used.
func (t target) Servers(zone string) []server {
	near := func(e mesh.Endpoint) bool { return e.Zone == zone && !e.Draining && t.Address(e) != "" }
	balancing := t.Policy.LoadBalancing
	prefers := balancing.PreferZone && zone != "" && slices.ContainsFunc(t.Endpoints, near)
	ids := make(map[uint32]bool)
	var servers, backups []server
	for i, e := range t.Endpoints {
		address := t.Address(e)
		if address == "" {
			continue
		}
		one := server{Endpoint: e, Name: "e" + strconv.Itoa(i), Address: address, Backup: prefers && !near(e), Ejected: t.Policy.Ejection != nil}
		if isHashed(balancing) {
			one.ID = uniqueID(address, ids)
		}
		servers = append(servers, one)
		if one.Ejected && !prefers {
			one.Name, one.Backup, one.Ejected = "b"+strconv.Itoa(i), true, false
			if one.ID != 0 {
				one.ID = uniqueID("backup "+address, ids)
			}
			backups = append(backups, one)
		}
	}
	return append(servers, backups...)
}

// isHashed reports whether requests are distributed by a hash.
func isHashed(b mesh.LoadBalancing) bool {
	return (b.Policy == mesh.RingHash || b.Policy == mesh.Maglev) && len(b.HashOn) > 0
}

// hashesSource reports whether connections are distributed by the client's address.
func hashesSource(b mesh.LoadBalancing) bool {
	return isHashed(b) && slices.ContainsFunc(b.HashOn, func(on mesh.HashOn) bool { return on.SourceIP })
}

// uniqueID returns a positive number that depends on the key only, unless another server
// of the target has it already.
func uniqueID(key string, taken map[uint32]bool) uint32 {
	hash := fnv.New32a()
	hash.Write([]byte(key))
	id := max(hash.Sum32()&0x7fffffff, 1)
	for taken[id] {
		id = id%0x7fffffff + 1
	}
	taken[id] = true
	return id
}

// hashLines sets txn.hash by the first input that a request has. A cookie that is missing is
// set.
func hashLines(balancing mesh.LoadBalancing) []string {
	var lines []string
	const none = "!{ var(txn.hash) -m found }"
	for i, on := range balancing.HashOn {
		switch {
		case on.Header != "" && word.MatchString(on.Header):
			lines = append(lines, "http-request set-var(txn.hash) req.fhdr("+on.Header+") if "+none)
		case on.Cookie != "" && word.MatchString(on.Cookie):
			made := "txn.cookie" + strconv.Itoa(i)
			value := on.Cookie + "=%[var(" + made + ")]; Path=/; HttpOnly"
			if seconds := int(on.CookieTTL.Seconds()); seconds > 0 {
				value += "; Max-Age=" + strconv.Itoa(seconds)
			}
			lines = append(lines,
				"http-request set-var(txn.hash) req.cook("+on.Cookie+") if "+none,
				"http-request set-var("+made+") uuid if "+none,
				"http-request set-var(txn.hash) var("+made+") if "+none,
				"http-response add-header set-cookie "+quote(value)+" if { var("+made+") -m found }")
		case on.SourceIP:
			lines = append(lines, "http-request set-var(txn.hash) src if "+none)
		}
	}
	return lines
}
