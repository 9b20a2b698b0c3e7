package source

import (
	"math"
	"strconv"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// accessLog parses a level of access logs. It returns nil if it is not set or invalid, so that
// the level of the wider scope applies.
func (n *notes) accessLog(path, level string) *mesh.AccessLog {
	switch level {
	case "":
		return nil
	case "none":
		return &mesh.AccessLog{}
	case "errors":
		return &mesh.AccessLog{Enabled: true}
	case "all":
		return new(mesh.FullAccessLog())
	}
	share, err := strconv.ParseFloat(level, 64)
	if err != nil || !(share >= 0 && share <= 1) {
		n.add(ReasonInvalid, path, `%q says nothing about access logs, so it is ignored; write none, errors, all, or a share of the requests, a number from 0 to 1 such as "0.1"`, level)
		return nil
	}
	return &mesh.AccessLog{Enabled: true, Sampled: uint32(math.Round(share * float64(mesh.EverythingSampled)))}
}

func (n *notes) accessLogOf(annotations map[string]string) *mesh.AccessLog {
	return n.accessLog("metadata.annotations["+metadata.AccessLog+"]", annotations[metadata.AccessLog])
}
