package agent

import (
	"flag"
	"log/slog"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// defaultListen is the address that the kubelet probes.
const defaultListen = ":15901"

// defaultListenMetrics is the address that Prometheus scrapes.
const defaultListenMetrics = ":15010"

var runCommand = command{
	name:    "run",
	usage:   "run [FLAGS]",
	summary: "obtain the pod's identity, run the proxy, answer probes (the sidecar container)",
	long: `Run obtains the pod's identity from the controller and keeps its files up to date,
mirrors the driver's repository if there is one, runs the proxy as OUTRIGGER_AGENT
specifies, answers /ready, /alive, /metrics and the app's probes, and on SIGTERM drains
and stops the proxy. A second SIGTERM stops it at once.

It exits after a POST to /quitquitquit from within the pod and, with --exit-with, when
the named processes have exited. That is for Jobs on clusters without native sidecars,
whose pods would never complete otherwise:

  # in the Job's own container, as the last step
  curl -X POST http://127.0.0.1:15901/quitquitquit

  # without touching the app: a pod with shareProcessNamespace: true and
  containers:
  - name: outrigger-proxy
    args: [--exit-with=report]`,
	prepare: func(p *program, flags *flag.FlagSet) func([]string) error {
		o := &runOptions{timings: p.timings}
		flags.StringVar(&o.listen, "listen", defaultListen, "`ADDRESS` to listen on for probes")
		flags.StringVar(&o.listenMetrics, "listen-metrics", defaultListenMetrics, "`ADDRESS` to listen on for Prometheus, if the proxy leaves its metrics to the agent")
		flags.StringVar(&o.identityAddress, "identity-address", "", "`HOST:PORT` of the signing service, if it is not port "+identityPort+" of $OUTRIGGER_CONTROLLER")
		flags.StringVar(&o.identityDir, "identity-dir", agentspec.IdentityDir, "`DIR` for key.pem, chain.pem, bundle.pem and files derived from them")
		flags.StringVar(&o.tokenFile, "token-file", agentspec.TokenFile, "`FILE` with the service account's token")
		flags.StringVar(&o.bundleFile, "bundle-file", agentspec.BundleFile, "`FILE` with the trust bundle; it may appear later")
		flags.StringVar(&o.certificateDir, "certificate-dir", agentspec.CertificateDir, "`DIR` in which the kubelet maintains key, certificate and trust bundle; without it the agent requests certificates")
		flags.StringVar(&o.successorSocket, "successor-socket", agentspec.SuccessorSocket, "`PATH` of the socket for containers with another version of the proxy")
		flags.Var(&o.exitWith, "exit-with", "exit when the process with this `NAME` has been seen and has exited; if repeated, when all of them have")
		flags.Var(&o.level, "log-level", "`LEVEL` of the agent's own log: debug, info, warn or error")
		return func([]string) error {
			config, err := readConfig(p.env)
			if err != nil {
				return err
			}
			log := slog.New(slog.NewJSONHandler(p.stderr, &slog.HandlerOptions{Level: slog.Level(o.level)}))
			return run(config, o, log)
		}
	},
}
