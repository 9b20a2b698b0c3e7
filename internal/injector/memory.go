package injector

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryFiles say how much memory a container may have, by control groups of version 2
// and 1.
var memoryFiles = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// limitMemory has the garbage collector work harder near the container's limit, rather
// than have the kernel end the process. GOMEMLIMIT overrides it.
func limitMemory() {
	if limit := memoryLimit(memoryFiles...); limit > 0 && os.Getenv("GOMEMLIMIT") == "" {
		// The rest is for what is not the Go runtime's, such as the buffers of sockets.
		debug.SetMemoryLimit(limit / 10 * 8)
	}
}

// memoryLimit returns the number in the first file that there is, in bytes, or 0 if it is
// none.
func memoryLimit(files ...string) int64 {
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		// "max" is no limit.
		limit, _ := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
		return limit
	}
	return 0
}
