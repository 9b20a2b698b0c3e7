package kit

import (
	"runtime"
	"runtime/debug"
)

// MemoryLimit is the memory limit, in bytes, of an agent that mirrors no files.
const MemoryLimit = 16 << 20

// LimitResources trades speed for a small memory footprint, since every pod has an agent.
func LimitResources() {
	debug.SetGCPercent(25)
	debug.SetMemoryLimit(MemoryLimit)
	runtime.GOMAXPROCS(min(2, runtime.GOMAXPROCS(0)))
}
