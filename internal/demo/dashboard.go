package demo

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/internal/dashboard"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/limit"
)

// playWithDashboard plays, and serves the dashboard meanwhile.
func (s *stage) playWithDashboard(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.opts.Dashboard)
	if err != nil {
		return fmt.Errorf("listening for the dashboard: %w", err)
	}
	options := dashboard.Options{Ask: s.ask, Log: s.opts.Log}
	s.say("The dashboard is at " + options.Local(listener))
	ctx, end := context.WithCancel(ctx)
	defer end()
	var group errgroup.Group
	group.Go(func() error {
		return limit.NewServer(dashboard.New(options), limit.Bounds{}, s.opts.Log).Run(ctx, listener, 0)
	})
	err = s.playWithDebugPages(ctx)
	end()
	return errors.Join(err, group.Wait())
}

// ask is the dashboard's way to the controller.
func (s *stage) ask(ctx context.Context, path string, take func(controller string, answer []byte) error) error {
	answer, err := s.mesh.Debug(ctx, path)
	if err != nil {
		return err
	}
	if err := take("the controller", answer); !errors.Is(err, debug.ErrEnough) {
		return err
	}
	return nil
}
