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

// podAnnotations is the capability by which containerd and CRI-O tell a plug-in the pod's
// annotations, and the key under which they do.
const podAnnotations = "io.kubernetes.cri.pod-annotations"

// The codes of errors, of which those below 100 are CNI's own.
const (
	codeNoRules = 100
	codeDecode  = types.ErrDecodingFailure
)

// netConf is what the runtime gives the plug-in on standard input.
type netConf struct {
	types.NetConf
	RuntimeConfig podConf        `json:"runtimeConfig"`
	PrevResult    map[string]any `json:"prevResult"`
}

// podConf is what the runtime tells of a pod, to plug-ins and in its notes.
type podConf struct {
	Annotations map[string]string `json:"io.kubernetes.cri.pod-annotations"`
	DNS         struct {
		Servers []string `json:"servers"`
	} `json:"dns"`
}

// plugin does what the container runtime asks for, and returns the exit code.
func plugin() int {
	nothing := func(*skel.CmdArgs) error { return nil }
	err := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add:    func(args *skel.CmdArgs) error { return add(args, os.Stdout) },
		Check:  check,
		Del:    nothing, // The rules end with the pod's network namespace.
		GC:     nothing,
		Status: nothing, // There is nothing that the plug-in waits for.
	}, version.All, Name+": redirects the traffic of pods in the mesh")
	if err == nil {
		return exitOK
	}
	if err := err.Print(); err != nil {
		fmt.Fprintln(os.Stderr, "error: outrigger-cni: printing an error:", err)
	}
	return exitFailed
}

// add redirects the traffic of a pod that the injector has marked, and leaves others as
// they are. What it prints is the result of the plug-ins before it, as it came.
func add(args *skel.CmdArgs, stdout io.Writer) error {
	conf, err := decodeConf(args.StdinData)
	if err != nil {
		return err
	}
	if conf.PrevResult == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, Name+" has no network to work on",
			"it must come after the plug-in that makes the pod's network; see docs/cni.md")
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

// check fails if the rules of a pod that add redirected are gone.
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

// redirect writes the rules of a pod into its network namespace, and reports whether it
// is one whose traffic is redirected. What it cannot carry out to the letter is an error,
// so that the pod does not start half redirected.
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
		return true, errors.New("the container runtime names no network namespace")
	}
	// Without name servers of the pod's there are none, and never the node's.
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
		return r, fmt.Errorf("%w; only the injector writes it, and this node's outrigger-cni must be as new as the injector", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return r, errors.New("there is something after the JSON value; only the injector writes it")
	}
	return r, nil
}
