package limit

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryFiles hold the container's memory limit in cgroup v2 and v1.
var memoryFiles = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// Memory sets the garbage collector's target percentage, and makes it work harder near the
// container's memory limit, so that the kernel does not kill the process. GOGC and GOMEMLIMIT
// override them.
func Memory(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
	if limit := memoryLimit(memoryFiles...); limit > 0 && os.Getenv("GOMEMLIMIT") == "" {
		// The rest is for memory outside the Go runtime, such as socket buffers.
		debug.SetMemoryLimit(limit / 10 * 8)
	}
}

// memoryLimit returns the limit in the first file that can be read, in bytes, or 0 if there
// is none.
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
