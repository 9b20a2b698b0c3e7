package haproxy

import (
	"cmp"
	"hash/fnv"
	"math/bits"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/drivers/haproxy/syntax"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// server is a server of a target: an endpoint that can be called, or a slot for one.
type server struct {
	mesh.Endpoint
	Name, Address syntax.Text
	// Verified is the name that its certificate must have, empty for plaintext.
	Verified syntax.Text
	// Slots is how many servers of this kind get their addresses from live.lua.
	Slots int
	// ID is the server's place on the ring of consistent hashing, 0 without it.
	ID uint32
	// Backup servers are used if all others are down.
	Backup bool
	// Ejected servers are taken out of use for a while when they fail.
	Ejected bool
}

// isLive reports whether live.lua changes the endpoints of the target without a reload. It
// can't change a server's place on a ring, nor which servers are backups.
func (t target) isLive() bool {
	p := t.Policy
	return t.ExternalName == "" && t.Via.IsZero() && !isHashed(p.LoadBalancing) && (p.Ejection == nil || !p.LoadBalancing.PreferZone)
}

// IsPaced reports whether pace.lua limits how many connections to a server of the target begin
// at once. A limit of the user's takes its place.
func (t target) IsPaced() bool {
	return t.ExternalName == "" && t.Via.IsZero() && t.Policy.MaxConnections == nil && t.Policy.MaxPendingRequests == nil && slices.ContainsFunc(t.Endpoints, isVerified)
}

// FillsUnevenly reports whether one server may be full while others are not.
func (t target) FillsUnevenly() bool {
	plain := func(e mesh.Endpoint) bool { return !isVerified(e) }
	return t.Session != nil || isHashed(t.Policy.LoadBalancing) || slices.ContainsFunc(t.Endpoints, plain)
}

func isVerified(e mesh.Endpoint) bool { return e.ServerName != "" }

// Lines returns the server lines for a client in the zone. A live target has one for each
// group, for more slots than there are endpoints: their number changes less often.
func (t target) Lines(zone string) []server {
	lines, count := t.Servers(zone), make(map[syntax.Text]int)
	if !t.isLive() {
		return lines
	}
	for _, one := range lines {
		count[one.Name]++
	}
	slices.SortStableFunc(lines, func(a, b server) int { return strings.Compare(a.Name.String(), b.Name.String()) })
	lines = slices.CompactFunc(lines, func(a, b server) bool { return a.Name == b.Name })
	for i, one := range lines {
		n := count[one.Name] + 1
		step := max(4, 1<<bits.Len(uint(n))/8)
		lines[i].Slots = (n + step - 1) / step * step
	}
	return lines
}

// share returns the part of a limit for one of several servers.
func share(n uint32, count int) uint32 { return max(1, min(n, 1<<30)/uint32(max(1, count))) }

// Servers returns the servers for a client in the zone. If endpoints of that zone are
// preferred, the others are backups. If endpoints are ejected and there are no such backups,
// each is a backup too, without ejection: when all have failed, all are used. A server of a
// live target has the name of its group, which contains all that the configuration says of
// the endpoint.
func (t target) Servers(zone string) []server {
	live, balancing := t.isLive(), t.Policy.LoadBalancing
	near := func(e mesh.Endpoint) bool { return e.Zone == zone && (live || !e.Draining) && !t.Address(e).IsZero() }
	prefers := balancing.PreferZone && zone != "" && (live || slices.ContainsFunc(t.Endpoints, near))
	ids := make(map[uint32]bool)
	var servers, backups []server
	for i, e := range t.Endpoints {
		address := t.Address(e)
		if address.IsZero() {
			continue
		}
		one := server{Endpoint: e, Name: syntax.Fill("e{}", syntax.Number(i)), Address: address, Backup: prefers && !near(e), Ejected: t.Policy.Ejection != nil}
		one.Verified, _ = syntax.Plain(e.ServerName)
		if t.Session != nil && !e.Draining {
			one.Name = one.Token()
		}
		if live {
			one.Name = cmp.Or(one.Verified, syntax.Literal("plain"))
			if one.Backup {
				one.Name = backup(one.Name)
			}
		}
		if isHashed(balancing) {
			one.ID = uniqueID(address.String(), ids)
		}
		servers = append(servers, one)
		if one.Ejected && !prefers {
			one.Backup, one.Ejected = true, false
			one.Name = backup(one.Name)
			if one.ID != 0 {
				one.ID = uniqueID("backup "+address.String(), ids)
			}
			backups = append(backups, one)
		}
	}
	return append(servers, backups...)
}

// Token returns what names the endpoint in tokens.
func (s server) Token() syntax.Text { return syntax.Section(s.Key()) }

// backup returns the name of a server's backup.
func backup(name syntax.Text) syntax.Text { return syntax.Fill("{}:backup", name) }

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
