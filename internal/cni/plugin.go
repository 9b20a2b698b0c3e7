package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/outrigger-mesh/outrigger/internal/capture"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// podAnnotations is the capability, and the key, by which containerd and CRI-O pass the
// pod's annotations to a plug-in.
const podAnnotations = "io.kubernetes.cri.pod-annotations"

// Error codes. CNI reserves those below 100.
const (
	codeNoRules = 100
	codeDecode  = types.ErrDecodingFailure
)

// netConf is the plug-in's standard input.
type netConf struct {
	types.NetConf
	RuntimeConfig podConf        `json:"runtimeConfig"`
	PrevResult    map[string]any `json:"prevResult"`
}

// podConf is the runtime's description of a pod, for plug-ins and in its records.
type podConf struct {
	Annotations map[string]string `json:"io.kubernetes.cri.pod-annotations"`
	DNS         struct {
		Servers []string `json:"servers"`
	} `json:"dns"`
}

// plugin runs as a CNI plug-in and returns the exit code.
func plugin() int {
	nothing := func(*skel.CmdArgs) error { return nil }
	err := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add:    func(args *skel.CmdArgs) error { return add(args, os.Stdout) },
		Check:  check,
		Del:    nothing, // The rules end with the pod's network namespace.
		GC:     nothing,
		Status: nothing, // The plug-in is always ready.
	}, version.All, Name+": redirects the traffic of pods in the mesh")
	if err == nil {
		return exitOK
	}
	if err := err.Print(); err != nil {
		fmt.Fprintln(os.Stderr, "error: outrigger-cni: printing an error:", err)
	}
	return exitFailed
}

// add redirects the traffic of pods with the injector's annotation. It prints the result
// of the previous plug-ins unchanged.
func add(args *skel.CmdArgs, stdout io.Writer) error {
	conf, err := decodeConf(args.StdinData)
	if err != nil {
		return err
	}
	if conf.PrevResult == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, Name+" has no network to work on",
			"it must come after the plug-in that creates the pod's network; see docs/cni.md")
	}
	if _, err := conf.RuntimeConfig.redirect(args.Netns); err != nil {
		return types.NewError(codeNoRules, "redirecting the pod's traffic for Outrigger", err.Error())
	}
	var raw struct {
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := json.Unmarshal(args.StdinData, &raw); err != nil {
		return types.NewError(codeDecode, "reading the network configuration", err.Error())
	}
	if _, err := stdout.Write(append(raw.PrevResult, '\n')); err != nil {
		return types.NewError(types.ErrIOFailure, "printing the result", err.Error())
	}
	return nil
}

// check fails if the rules of a redirected pod are gone.
func check(args *skel.CmdArgs) error {
	conf, err := decodeConf(args.StdinData)
	if err != nil {
		return err
	}
	if _, ok := conf.RuntimeConfig.Annotations[agentspec.RedirectionAnnotation]; !ok {
		return nil
	}
	there, err := capture.Present(capture.Options{NetNS: args.Netns})
	if err == nil && !there {
		err = fmt.Errorf("the table inet %s is gone", capture.TableName)
	}
	if err != nil {
		return types.NewError(codeNoRules, "checking that the pod's traffic is redirected", err.Error())
	}
	return nil
}

func decodeConf(text []byte) (*netConf, error) {
	conf := &netConf{}
	if err := json.Unmarshal(text, conf); err != nil {
		return nil, types.NewError(codeDecode, "reading the network configuration", err.Error())
	}
	return conf, nil
}

// redirect writes the pod's rules into its network namespace, and reports whether its
// traffic is to be redirected. A redirection that it cannot implement completely is an
// error, so that the pod does not start.
func (p *podConf) redirect(netns string) (bool, error) {
	text, ok := p.Annotations[agentspec.RedirectionAnnotation]
	if !ok {
		return false, nil
	}
	redirection, err := parseRedirection(text)
	if err != nil {
		return true, fmt.Errorf("the pod's annotation %s: %w", agentspec.RedirectionAnnotation, err)
	}
	if netns == "" {
		return true, errors.New("the container runtime gave no network namespace")
	}
	// Not nil, which would mean the node's name servers.
	options := capture.Options{NetNS: netns, DNS: []netip.Addr{}}
	for _, server := range p.DNS.Servers {
		if addr, err := netip.ParseAddr(server); err == nil {
			options.DNS = append(options.DNS, addr)
		}
	}
	return true, capture.Apply(redirection, options)
}

func parseRedirection(text string) (agentspec.Redirection, error) {
	var r agentspec.Redirection
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, fmt.Errorf("%w; only the injector may set it, and this node's outrigger-cni must be as new as the injector", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return r, errors.New("there is content after the JSON value; only the injector may set it")
	}
	return r, nil
}
