package inject

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The files of the template directory, and the keys of the ConfigMap.
const (
	ConfigKey = "config"
	ValuesKey = "values"
)

// pollInterval is how often the template directory is read. Polling also sees new
// mounts and swapped links.
const pollInterval = time.Second

// Reloader loads an injector's configuration from a template directory or, if that
// does not exist, from a ConfigMap; without either the drivers' templates are used. It
// applies nothing before it has read the directory once, and keeps the last good
// configuration if a new one is invalid. Its methods are safe for concurrent use.
type Reloader struct {
	injector *Injector
	metrics  *Metrics
	log      *slog.Logger
	dir      string

	mu        sync.Mutex
	looked    bool
	directory *pair
	configMap *pair
	inUse     *pair
	lastBad   *pair
}

// pair holds the files of one configuration and their origin.
type pair struct{ config, values, origin string }

// builtin is used without a configuration.
var builtin = pair{origin: "the drivers' own templates"}

// NewReloader returns a Reloader for the directory, or for none if it is empty.
func NewReloader(injector *Injector, dir string, metrics *Metrics, log *slog.Logger) *Reloader {
	return &Reloader{injector: injector, dir: dir, metrics: metrics, log: log}
}

// Run polls the directory until ctx ends. It reads it once at the start.
func (r *Reloader) Run(ctx context.Context) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		r.Look()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Look reads the directory once.
func (r *Reloader) Look() {
	var p *pair
	if r.dir != "" {
		var err error
		if p, err = readPair(r.dir); err != nil {
			r.log.Error("the template directory cannot be read; the current configuration is kept", "directory", r.dir, "error", err)
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.directory, r.looked = p, true
	r.choose()
}

// ConfigMap sets the current ConfigMap; nil means that there is none.
func (r *Reloader) ConfigMap(cm *corev1.ConfigMap) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.configMap = nil
	if cm != nil {
		r.configMap = &pair{cm.Data[ConfigKey], cm.Data[ValuesKey], "ConfigMap " + cm.Namespace + "/" + cm.Name}
	}
	r.choose()
}

// choose applies the pair with the highest precedence, if it changed and is valid.
func (r *Reloader) choose() {
	if !r.looked {
		return
	}
	p := builtin
	switch {
	case r.directory != nil:
		p = *r.directory
	case r.configMap != nil:
		p = *r.configMap
	}
	if r.inUse != nil && *r.inUse == p {
		r.lastBad = nil
		r.metrics.loaded.Set(1)
		return
	}
	if r.lastBad != nil && *r.lastBad == p {
		return
	}
	config, err := NewConfig(p.config, p.values)
	r.metrics.reloaded(err)
	if err != nil {
		r.lastBad = &p
		r.log.Error("the injection config is invalid; the last good one is kept", "origin", p.origin, "error", err)
		return
	}
	r.injector.Use(config)
	r.inUse, r.lastBad = &p, nil
	r.log.Info("loaded the injection config", "origin", p.origin)
}

// readPair returns the directory's pair, or nil if it has no file "config". It reads
// until two reads agree, so that a change between the two files does not yield a
// mixed pair.
func readPair(dir string) (*pair, error) {
	var last *pair
	for range 10 {
		config, err := os.ReadFile(filepath.Join(dir, ConfigKey))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		values, err := os.ReadFile(filepath.Join(dir, ValuesKey))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		p := &pair{string(config), string(values), "directory " + dir}
		if last != nil && *last == *p {
			return p, nil
		}
		last = p
	}
	return nil, errors.New("its files keep changing")
}
