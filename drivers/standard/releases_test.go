package standard_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

const pageVersions = `
## Which versions work

What is known of the versions of each proxy, on %s. An advisory that is not named here is not
known to have been looked at. The table is made from a file beside each driver, such as
[releases.json](../drivers/envoy/releases.json) of Envoy.

| version | tested on | supported until | known advisories | what it lacks |
|---|---|---|---|---|
`

const pageUnsupported = `
Pods without a proxy use the library of the application: grpc-go 1.84 or later, with [a table of its
own](grpc.md#what-is-tested). Clients of older versions send no SNI.

Envoy 1.36 rejects the configuration, since it has neither ` + "`max_early_data_bytes`" + ` of a TCP proxy nor the
keepalive of a listener. OSM's ` + "`envoy-distroless:v1.22.2`" + ` is even older.

An image whose tag is a version that is too old or too new, or that has a fault marked as not supported, is a
Problem of the MeshConfig that names it, and an admission warning, ` + "`" + `image_not_supported` + "`" + `, for every
pod that gets it. Images with other tags, such as ` + "`" + `latest` + "`" + `, or with only a digest are not checked.
[` + "`outrigger check`" + `](check.md) looks at the versions that the connected proxies report, names those
that are not supported, have a known fault or are not the newest of their branch, and says what to do.
In a running pod, ` + "`outrigger proxy list -o wide`" + ` shows the version.

An image whose tag is a version that lacks a feature of its class, such as HTTP2Resets in HAProxy 2.6, is
a Problem of the MeshConfig with the reason NotSupportedByProxy, and an admission warning,
` + "`" + `image_lacks_feature` + "`" + `. One configuration serves all versions of HAProxy: what differs is in conditions that
HAProxy evaluates when it reads the file, so its own version decides and nobody guesses it from the name
of an image ([decision 48](decisions/0048-versions-of-haproxy.md)). Why versions are a file of data is
in [decision 52](decisions/0052-versions-of-proxies-as-data.md).
`

const pageKeyExchange = `
## Key exchange

Two proxies use the strongest key exchange of TLS that both have: X25519MLKEM768, whose secrets stay secret even if
somebody records the traffic and reads it with a later quantum computer, or otherwise X25519. A
proxy has X25519MLKEM768 from these versions on:

| class | version |
|---|---|
`

const pageKeyExchanges = `
The version of OpenSSL is that of the image: HAProxy's own version does not tell it. The row "Key exchange" of
[the behaviour table](behaviour.md) reads on the wire what each pair uses, and checks that it is what this table says.
` + "[`outrigger check`](check.md)" + ` says which proxies of the mesh have which one, under ` + "`proxies/key-exchange`" + `, and so
does the metric ` + "`outrigger_proxies_by_key_exchange`" + `. Pods without a proxy use what the library of the
application chooses; gRPC in Go has X25519MLKEM768.

` + "`spec.sidecar.ecdhCurves`" + ` of the [MeshConfig](meshconfig.md) limits the key exchanges. A list without X25519MLKEM768 is
a warning of ` + "`outrigger check`" + `. A proxy that does not have X25519MLKEM768 uses the others of the list; if there are
none, it refuses its configuration rather than use a weaker one. HAProxy 2.6 can't limit what it offers as a
client, so that its servers decide. An Envoy built for FIPS may not know X25519MLKEM768: there, list what it knows.
`

// versions returns the rows of the versions of a driver.
func versions(r *driver.Releases) string {
	var out strings.Builder
	for _, release := range r.Releases {
		name := r.Proxy + " " + release.Version
		for _, role := range [][2]string{{r.Default, "default"}, {r.Oldest, "oldest supported"}} {
			switch {
			case release.Version == role[0]:
				name += ", the " + role[1]
			case strings.HasPrefix(release.Version, role[0]+"."):
				name += fmt.Sprintf(", whose branch is the %s", role[1])
			}
		}
		var known []string
		if err := r.Check(release.Version); err != nil {
			known = append(known, "not supported")
		}
		for _, a := range r.Affecting(release.Version) {
			known = append(known, fmt.Sprintf("%s: %s (fixed in %s)", a.ID, a.Summary, strings.Join(a.Fixed, ", ")))
		}
		known = append(known, release.Open...)
		if release.Remark != "" {
			known = append(known, release.Remark)
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %s | %s |\n", name, cmp.Or(release.Tested, "not tried"),
			driver.QuarterName(release.Until), cmp.Or(strings.Join(known, ". "), "none is known"), release.Lacks)
	}
	return out.String()
}

// known returns what is known of the versions of all drivers, by name.
func known() (drivers []string, of map[string]*driver.Releases) {
	of = make(map[string]*driver.Releases)
	for _, name := range sidecar.Drivers() {
		if c, err := sidecar.Capabilities(name); err == nil && c.Releaser != nil {
			drivers, of[name] = append(drivers, name), c.Releaser.Releases()
		}
	}
	return drivers, of
}

// TestReleases checks the data about versions against what the drivers declare and install.
func TestReleases(t *testing.T) {
	drivers, of := known()
	if !slices.Equal(drivers, []string{"envoy", "haproxy", "pipy"}) {
		t.Errorf("the versions of %s are known", drivers)
	}
	for _, name := range drivers {
		r := of[name]
		if lacked := r.LackedBy(r.Default); len(lacked) > 0 {
			t.Errorf("%s: the default version %s lacks %s, which the driver declares", name, r.Default, lacked)
		}
		for feature := range r.Since {
			if !slices.Contains(sidecar.Features(name), feature) {
				t.Errorf("%s has %s since a version, but the driver does not declare it", name, feature)
			}
		}
		if image := sidecar.Image(name, "linux"); !strings.HasSuffix(image, r.Default) || sidecar.CheckImage(name, image) != nil {
			t.Errorf("%s: the default image is %s, but the default version %s", name, image, r.Default)
		}
		for _, release := range r.Releases {
			if release.Tested == "" && (release.Version == r.Default) && !slices.ContainsFunc(r.Releases, func(other driver.Release) bool {
				return other.Tested != "" && strings.HasPrefix(other.Version, r.Default[:strings.LastIndex(r.Default, ".")])
			}) {
				t.Errorf("%s: no release of the branch of the default version %s was tested", name, r.Default)
			}
			for feature := range strings.SplitSeq(release.Lacks, ", ") {
				feature, _, _ = strings.Cut(feature, ".")
				f := mesh.Feature(feature)
				if slices.Contains(mesh.Features(), f) && slices.Contains(sidecar.Features(name), f) && !slices.Contains(r.LackedBy(release.Version), f) {
					t.Errorf("%s %s lacks %s, which the driver declares", name, release.Version, feature)
				}
			}
		}
	}
}
