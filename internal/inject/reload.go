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

// pollInterval is how often the template directory is read. Reading sees every
// kind of change, also those that come by a new mount or a swapped link.
const pollInterval = time.Second

// Reloader keeps an injector's configuration equal to a template directory or,
// while that is not there, to a ConfigMap; without either the drivers' own
// templates serve. Nothing is used before the first look at the directory, and a
// pair that cannot be used leaves the last good one in place. Its methods may be
// called from many goroutines.
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

// pair is the texts of one configuration and where they came from.
type pair struct{ config, values, origin string }

// builtin is what serves where no configuration is.
var builtin = pair{origin: "the drivers' own templates"}

// NewReloader returns a Reloader for the directory, or for none if it is empty.
func NewReloader(injector *Injector, dir string, metrics *Metrics, log *slog.Logger) *Reloader {
	return &Reloader{injector: injector, dir: dir, metrics: metrics, log: log}
}

// Run watches the directory until ctx ends. The first look happens before it
// waits.
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
			r.log.Error("the template directory cannot be read; what is in use stays", "directory", r.dir, "error", err)
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.directory, r.looked = p, true
	r.choose()
}

// ConfigMap takes up a new state of the ConfigMap; nil means that there is none.
func (r *Reloader) ConfigMap(cm *corev1.ConfigMap) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.configMap = nil
	if cm != nil {
		r.configMap = &pair{cm.Data[ConfigKey], cm.Data[ValuesKey], "ConfigMap " + cm.Namespace + "/" + cm.Name}
	}
	r.choose()
}

// choose uses the pair that counts now, if it can be used.
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
		r.log.Error("an injection config cannot be used; the last good one stays", "origin", p.origin, "error", err)
		return
	}
	r.injector.Use(config)
	r.inUse, r.lastBad = &p, nil
	r.log.Info("an injection config is in use", "origin", p.origin)
}

// readPair returns the directory's pair, or nil if it has no file "config". It
// reads until two readings agree, so that a swap between the two files is not
// taken for a pair.
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
