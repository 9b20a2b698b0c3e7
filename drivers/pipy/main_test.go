package pipy

import (
	"os"
	"testing"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

func TestMain(m *testing.M) {
	lab.Enter()
	os.Exit(m.Run())
}
