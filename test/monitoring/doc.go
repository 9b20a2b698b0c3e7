// Package monitoring contains tests of the dashboards and alerts with a real Prometheus, which
// test/prometheus compiles. 'make prometheus' runs them.
package monitoring
