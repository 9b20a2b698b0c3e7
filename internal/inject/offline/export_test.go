package offline

import "context"

// InjectFiles is Parse and Inject in one.
func InjectFiles(ctx context.Context, engine Engine, sources []Source, opts Options) (*Result, error) {
	return Parse(sources).Inject(ctx, engine, opts)
}
