package driver

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Releaser is implemented by drivers that know the versions of their proxy.
type Releaser interface {
	// Releases returns what is known of the versions. It never changes.
	Releases() *Releases
}

// Releases are what a driver knows of the versions of its proxy: which are supported, were
// tested, and have known faults. A driver keeps them as a file of JSON, so that they can be
// changed without its code.
type Releases struct {
	// Proxy is the name of the program, with which the last part of its images' names begins.
	Proxy string `json:"proxy"`
	// AsOf is the date of the data, as 2006-01-02.
	AsOf string `json:"asOf"`
	// Default is the version of the driver's default image.
	Default string `json:"default"`
	// Oldest is the oldest supported version, and Reason why older ones are not.
	Oldest string `json:"oldest"`
	Reason string `json:"reason"`
	// Before is the first version that the driver cannot run, or nil.
	Before *Before `json:"before,omitempty"`
	// Newest are the newest releases, one for each branch. It may be empty.
	Newest []string `json:"newest,omitempty"`
	// Since are features that the driver declares, although older supported versions lack them.
	Since map[mesh.Feature]Since `json:"since,omitempty"`
	// Hybrid says which versions have the key exchange KeyExchangeHybrid and prefer it.
	Hybrid Hybrid `json:"hybrid,omitzero"`
	// Advisories are known faults that concern a mesh.
	Advisories []Advisory `json:"advisories,omitempty"`
	// Releases are versions of which more is known, the newest first.
	Releases []Release `json:"releases"`
}

// Release is what is known of one version.
type Release struct {
	// Version is as the program reports it, and may end in the name of a build.
	Version string `json:"version"`
	// Tested says with what the version was tested. It is empty if it was not.
	Tested string `json:"tested,omitempty"`
	// Until is the quarter, such as 2027-Q2, in which the version's branch gets its last fixes.
	// It is empty if that is unknown.
	Until string `json:"until,omitempty"`
	// Open are known faults of this version in particular, and Remark is what else is known
	// about faults.
	Open   []string `json:"open,omitempty"`
	Remark string   `json:"remark,omitempty"`
	// Lacks is what it does not do, although newer or older ones may.
	Lacks string `json:"lacks,omitempty"`
}

// Before says which newer versions of a proxy a driver cannot run.
type Before struct {
	// Version is the first of them.
	Version string `json:"version"`
	// Reason says why.
	Reason string `json:"reason"`
}

// Since says from which version on a proxy has a feature.
type Since struct {
	// Version is the first one that has it.
	Version string `json:"version"`
	// Otherwise says what older ones do instead.
	Otherwise string `json:"otherwise"`
}

// The key exchanges of TLS that proxies use by default, by the names of ecdhCurves.
const (
	// KeyExchangeHybrid is the strongest: what it protects stays secret even if the traffic is
	// recorded and a quantum computer reads it later.
	KeyExchangeHybrid = "X25519MLKEM768"
	// KeyExchangeClassic is that of proxies without the former.
	KeyExchangeClassic = "X25519"
)

// Hybrid says which versions of a proxy have KeyExchangeHybrid.
type Hybrid struct {
	// Library is the TLS library that decides it, as the proxy's version names it. If empty, it
	// is the proxy's own version.
	Library string `json:"library,omitempty"`
	// Since is the first version that has it, of the library or the proxy.
	Since string `json:"since"`
}

// Advisory is a known fault of a proxy.
type Advisory struct {
	// ID is its public name, such as a number of a CVE.
	ID string `json:"id"`
	// Library is the TLS library that has the fault, as the proxy's version names it. If empty, it
	// is the proxy itself.
	Library string `json:"library,omitempty"`
	// Summary says in a few words what happens.
	Summary string `json:"summary"`
	// Fixed are versions of the proxy or the library that have the fix, at most one for each branch. Versions of other
	// branches have the fault if they are older than the last of these.
	Fixed []string `json:"fixed"`
	// Unsupported says that versions with the fault are not supported.
	Unsupported bool `json:"unsupported,omitempty"`
	// fixed are the numbers of Fixed.
	fixed [][]int
}

// ParseReleases reads a driver's file. It panics if the file is invalid, which the driver's
// tests find.
func ParseReleases(file []byte) *Releases {
	decoder := json.NewDecoder(bytes.NewReader(file))
	decoder.DisallowUnknownFields()
	r := new(Releases)
	if err := decoder.Decode(r); err != nil {
		panic("driver: the file of releases: " + err.Error())
	}
	if _, err := time.Parse(time.DateOnly, r.AsOf); err != nil || r.Proxy == "" || numbers(r.Oldest) == nil {
		panic("driver: the file of releases needs proxy, asOf and oldest")
	}
	if r.Before != nil && (numbers(r.Before.Version) == nil || r.Before.Reason == "") {
		panic("driver: the file of releases: before needs a version and a reason")
	}
	// The image of each pod is compared with them.
	for i := range r.Advisories {
		for _, version := range r.Advisories[i].Fixed {
			r.Advisories[i].fixed = append(r.Advisories[i].fixed, numbers(version))
		}
	}
	for feature, since := range r.Since {
		if numbers(since.Version) == nil || since.Otherwise == "" || !slices.Contains(mesh.Features(), feature) {
			panic("driver: the file of releases needs a version and a text for each feature in since: " + string(feature))
		}
	}
	if r.Hybrid != (Hybrid{}) && numbers(r.Hybrid.Since) == nil {
		panic("driver: the file of releases: hybrid needs the first version")
	}
	for _, release := range r.Releases {
		if _, _, err := quarter(release.Until); err != nil && release.Until != "" {
			panic("driver: the file of releases: " + err.Error())
		}
	}
	return r
}

// Check returns why a version is not supported and what to do, or nil. The version may follow
// the name of the program, as in "envoy 1.40.0". Text without a version is accepted.
func (r *Releases) Check(version string) error {
	if reason := r.unsupported(VersionIn(version)); reason != "" {
		return fmt.Errorf("%s %s %s; omit the image to use the driver's default, %s", r.Proxy, VersionIn(version), reason, r.Default)
	}
	return nil
}

// CheckImage returns why an image is not supported and what to do, or nil. It looks only at
// images whose last path element begins with the program's name and whose tag is a version.
func (r *Releases) CheckImage(image string) error {
	if reason := r.unsupported(r.tagOf(image)); reason != "" {
		return fmt.Errorf("%q %s; omit the image to use the driver's default, %s %s", image, reason, r.Proxy, r.Default)
	}
	return nil
}

// tagOf returns the tag of an image of the proxy, or "".
func (r *Releases) tagOf(image string) string {
	reference, _, _ := strings.Cut(image, "@")
	repository, tag, _ := strings.Cut(reference[strings.LastIndex(reference, "/")+1:], ":")
	if !strings.HasPrefix(repository, r.Proxy) {
		return ""
	}
	return tag
}

// unsupported returns the predicate of a sentence about a version, or nothing if it is
// supported.
func (r *Releases) unsupported(version string) string {
	has := numbers(version)
	if has == nil {
		return ""
	}
	if older(has, numbers(r.Oldest)) {
		return fmt.Sprintf("is too old: the oldest supported %s is %s, since %s", r.Proxy, r.Oldest, r.Reason)
	}
	if r.Before != nil && !older(has, numbers(r.Before.Version)) {
		return fmt.Sprintf("is too new: versions before %s are supported, since %s", r.Before.Version, r.Before.Reason)
	}
	for i := range r.Advisories {
		if a := &r.Advisories[i]; a.Unsupported && a.Library == "" && a.affects(has) {
			return fmt.Sprintf("has a known fault, %s: %s (fixed in %s)", a.ID, a.Summary, strings.Join(a.Fixed, ", "))
		}
	}
	return ""
}

// older reports whether a version is older than another one. One of two numbers is the tag of a
// branch, and means its newest release.
func older(version, than []int) bool {
	if len(version) == 2 {
		than = than[:min(len(than), 2)]
	}
	return slices.Compare(version, than) < 0
}

// LackedBy returns the features of the driver that a version lacks, sorted. A text without a
// version may be any supported one.
func (r *Releases) LackedBy(version string) []mesh.Feature {
	has := cmp.Or(VersionIn(version), r.Oldest)
	var lacked []mesh.Feature
	for _, feature := range slices.Sorted(maps.Keys(r.Since)) {
		if older(numbers(has), numbers(r.Since[feature].Version)) {
			lacked = append(lacked, feature)
		}
	}
	return lacked
}

// LackedByImage says for each feature of the driver that an image lacks what happens without it.
// It looks only at images of the proxy whose tag is a version.
func (r *Releases) LackedByImage(image string) []string {
	tag := r.tagOf(image)
	if numbers(tag) == nil {
		return nil
	}
	var lacked []string
	for _, feature := range r.LackedBy(tag) {
		lacked = append(lacked, fmt.Sprintf("%q lacks the feature %s: %s; use %s %s or later", image, feature, r.Since[feature].Otherwise, r.Proxy, r.Since[feature].Version))
	}
	return lacked
}

// KeyExchange returns the strongest key exchange that a proxy has by default, by the version
// that it reports, or "" if that does not tell.
func (r *Releases) KeyExchange(version string) string {
	has := numbers(partOf(version, r.Hybrid.Library))
	switch {
	case has == nil || r.Hybrid.Since == "":
		return ""
	case older(has, numbers(r.Hybrid.Since)):
		return KeyExchangeClassic
	default:
		return KeyExchangeHybrid
	}
}

// partOf returns the proxy's own version, or that of a library which follows its name, or "".
func partOf(version, library string) string {
	if library != "" {
		_, version, _ = strings.Cut(version, " "+library+" ")
	}
	return VersionIn(version)
}

// Affecting returns the advisories about a version. A version without a patch number has none,
// since it may be any release of its branch, and so has a library that the version does not name.
func (r *Releases) Affecting(version string) []Advisory {
	return slices.DeleteFunc(slices.Clone(r.Advisories), func(a Advisory) bool { return !a.affects(numbers(partOf(version, a.Library))) })
}

// affects reports whether a version has the fault.
func (a *Advisory) affects(version []int) bool {
	var last []int
	for _, fixed := range a.fixed {
		if branch(fixed) == branch(version) {
			return len(version) > 2 && slices.Compare(version, fixed) < 0
		}
		if slices.Compare(fixed, last) > 0 {
			last = fixed
		}
	}
	return len(version) > 2 && slices.Compare(version, last) < 0
}

// Warnings returns what speaks against a supported version at a time: known faults, a newer
// release of its branch, and the end of its support.
func (r *Releases) Warnings(version string, now time.Time) []string {
	affecting := r.Affecting(version)
	version = VersionIn(version)
	has := numbers(version)
	if has == nil {
		return nil
	}
	var all []string
	for _, a := range affecting {
		all = append(all, fmt.Sprintf("known fault %s: %s (fixed in %s)", a.ID, a.Summary, strings.Join(a.Fixed, ", ")))
	}
	tested := false
	for _, release := range r.Releases {
		if release.Version == version {
			all = append(all, release.Open...)
		}
		if branch(numbers(release.Version)) != branch(has) {
			continue
		}
		tested = tested || release.Tested != ""
		if year, q, err := quarter(release.Until); err == nil && !now.Before(time.Date(year, time.Month(3*q+1), 1, 0, 0, 0, 0, time.UTC)) {
			ended := fmt.Sprintf("its branch gets no fixes since the end of %s", release.Until)
			if !slices.Contains(all, ended) {
				all = append(all, ended)
			}
		}
	}
	if !tested {
		all = append(all, "no release of its branch was tested with this version of the mesh")
	}
	for _, newest := range r.Newest {
		if n := numbers(newest); branch(n) == branch(has) && slices.Compare(has, n) < 0 && len(has) > 2 {
			all = append(all, fmt.Sprintf("%s is the newest release of its branch that was known on %s", newest, r.AsOf))
		}
	}
	return all
}

// VersionIn returns the first word of a text that is a version, without a leading v, or "".
func VersionIn(text string) string {
	for word := range strings.FieldsSeq(text) {
		if word = strings.TrimPrefix(word, "v"); len(numbers(word)) > 1 {
			return word
		}
	}
	return ""
}

// branch returns the first two numbers of a version.
func branch(version []int) [2]int {
	var b [2]int
	copy(b[:], version)
	return b
}

// quarter reads text such as 2027-Q2.
func quarter(text string) (year, quarter int, err error) {
	if _, err = fmt.Sscanf(text, "%d-Q%d", &year, &quarter); err == nil && (quarter < 1 || quarter > 4) {
		err = fmt.Errorf("%q is no quarter, such as 2027-Q2", text)
	}
	return year, quarter, err
}

// QuarterName returns the name of a Release's Until for people.
func QuarterName(until string) string {
	year, q, err := quarter(until)
	if err != nil {
		return cmp.Or(until, "not known")
	}
	return fmt.Sprintf("the %s quarter of %d", [...]string{"first", "second", "third", "fourth"}[q-1], year)
}
