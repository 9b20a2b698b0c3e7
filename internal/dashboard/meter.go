package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
)

const (
	// period is how long requests are counted for one measurement.
	period = 4 * time.Second
	// watched is how long a meter continues to measure after the last request.
	watched = 20 * time.Second
	// measureTimeout limits one measurement.
	measureTimeout = time.Minute
)

// meter measures the traffic of the mesh while somebody looks. All viewers share its
// measurements, for which one controller reads all proxies.
type meter struct {
	ask Ask

	mu      sync.Mutex
	running bool
	wanted  time.Time
	// edges and err are the results of the last measurement, once done is true.
	edges []Edge
	done  bool
	err   error
}

// last returns the last measurement and has the meter measure again. It does not wait: done
// is false before the end of the first measurement.
func (m *meter) last() (edges []Edge, done bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wanted = time.Now()
	if !m.running {
		m.running = true
		go m.run()
	}
	return append([]Edge{}, m.edges...), m.done, m.err
}

// run measures until nobody looks any more.
func (m *meter) run() {
	for {
		began := time.Now()
		edges, err := m.measure()
		m.mu.Lock()
		m.done, m.err = true, err
		// The edges of a measurement without a result would soon be wrong.
		m.edges = edges
		m.running = time.Since(m.wanted) < watched
		running := m.running
		m.mu.Unlock()
		if !running {
			return
		}
		// Without an answer from a controller the measurement has taken no time.
		time.Sleep(time.Until(began.Add(period)))
	}
}

func (m *meter) measure() ([]Edge, error) {
	ctx, cancel := context.WithTimeout(context.Background(), measureTimeout)
	defer cancel()
	var report *traffic.Report
	err := m.ask(ctx, debug.TrafficPath+"?period="+period.String(), func(controller string, text []byte) error {
		if text == nil {
			return nil
		}
		var answer traffic.Report
		if err := json.Unmarshal(text, &answer); err != nil {
			return fmt.Errorf("traffic, from controller %s: %w", controller, err)
		}
		report = &answer
		return debug.ErrEnough
	})
	if report == nil {
		if err == nil {
			err = errors.New("no controller has measured the traffic")
		}
		return nil, err
	}
	return edgesOf(report), unread(report)
}

// unread returns an error that says which proxies could not be read.
func unread(report *traffic.Report) error {
	count, first := 0, ""
	for i := range report.Pods {
		if pod := &report.Pods[i]; pod.Problem != "" {
			if count++; count == 1 {
				first = pod.Name.String() + ": " + pod.Problem
			}
		}
	}
	switch count {
	case 0:
		return nil
	case 1:
		return errors.New("the metrics of a proxy can't be read: " + first)
	}
	return fmt.Errorf("the metrics of %d proxies can't be read, such as %s", count, first)
}
