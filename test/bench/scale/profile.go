package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/google/pprof/profile"
)

// recording is the CPU profile of a control plane, recorded until it is stopped. It has gaps of
// some milliseconds, because a control plane gives profiles only for whole seconds.
type recording struct {
	cancel context.CancelFunc
	parts  chan []*profile.Profile
}

// record starts to record the CPU profile.
func (p *plane) record(ctx context.Context) *recording {
	ctx, cancel := context.WithCancel(ctx)
	r := &recording{cancel: cancel, parts: make(chan []*profile.Profile, 1)}
	go func() {
		var parts []*profile.Profile
		for ctx.Err() == nil {
			// While the process is restarted, it has no profile.
			if part, err := p.profile(ctx, "profile?seconds=1"); err == nil {
				parts = append(parts, part)
			}
		}
		r.parts <- parts
	}()
	return r
}

// stop ends the recording and writes it to a file, without the second that is going on.
func (r *recording) stop(file string) error {
	r.cancel()
	parts := <-r.parts
	if len(parts) == 0 {
		return nil
	}
	whole, err := profile.Merge(parts)
	if err != nil {
		return err
	}
	return writeProfile(whole, file)
}

// profile returns a page of net/http/pprof.
func (p *plane) profile(ctx context.Context, page string) (*profile.Profile, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.pprof+page, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s%s: %s", p.pprof, page, response.Status)
	}
	return profile.Parse(response.Body)
}

func writeProfile(p *profile.Profile, file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(p.Write(f), f.Close())
}

// profiled runs a scenario, and writes the control plane's CPU profile of it and the heap at its
// end into the folder.
func (m *testMesh) profiled(ctx context.Context, s scenario, r *Result, folder string) error {
	name := filepath.Join(folder, fmt.Sprintf("%s-%s-%s-%d-%s", r.ControlPlane, r.Protocol, r.Mode, r.Services, s.name))
	cpu := m.plane.record(ctx)
	err := m.run(ctx, s, r)
	err = errors.Join(err, cpu.stop(name+".cpu.pb.gz"))
	if err != nil {
		return err
	}
	heap, err := m.plane.profile(ctx, "heap?gc=1")
	if err != nil {
		return err
	}
	return writeProfile(heap, name+".heap.pb.gz")
}
