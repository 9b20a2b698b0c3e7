package source_test

import (
	"strings"
	"testing"
)

const policyKind = "apiVersion: outrigger.dev/v1alpha1\nkind: AccessPolicy"

// TestAccessPolicy reads policies. What cannot be read allows nothing, and denies everything.
func TestAccessPolicy(t *testing.T) {
	const pods = `targetRefs: [{kind: Pod, selector: {matchLabels: {app: cart}}}]`
	const base = `{"action":"Allow","targets":[{"pods":"=app=cart"}],"rules":`
	const denying = `{"action":"Deny","targets":[{"pods":"=app=cart"}],"rules":`
	const all = `[{"field":"spec","everyone":true,"anyPort":true,"requests":[{}]}]}`
	check(t, policyKind, []row{
		{"without rules everything", `{` + pods + `}`, base + all, nil},
		{"empty rules are nothing", `{` + pods + `, rules: []}`, base + `null}`, nil},
		{"missing lists are anything", `{` + pods + `, action: Deny, rules: [{}]}`, denying + `[{"field":"spec.rules[0]","everyone":true,"anyPort":true,"requests":[{}]}]}`, nil},
		{"empty lists are nothing", `{` + pods + `, rules: [{sources: []}, {ports: []}, {http: []}]}`,
			base + `[{"field":"spec.rules[0]","anyPort":true,"requests":[{}]},{"field":"spec.rules[1]","everyone":true,"requests":[{}]},{"field":"spec.rules[2]","everyone":true,"anyPort":true,"onlyRequests":true}]}`, nil},
		{"empty lists deny nothing", `{` + pods + `, action: Deny, rules: [{sources: []}, {ports: []}, {http: []}]}`,
			denying + `[{"field":"spec.rules[0]","anyPort":true,"requests":[{}]},{"field":"spec.rules[1]","everyone":true,"requests":[{}]},{"field":"spec.rules[2]","everyone":true,"anyPort":true,"onlyRequests":true}]}`, nil},
		{"all of a rule", `{` + pods + `, rules: [{
			sources: [{serviceAccount: {name: web}}, {serviceAccount: {namespace: users}}, {namespaces: {matchLabels: {team: a}}}, {spiffe: "spiffe://td/ns/a/sa/b.c"}, {ipBlock: 10.1.2.3/8}],
			notSources: [{serviceAccount: {namespace: users, name: guest}}], ports: [80, 9090],
			http: [{path: {type: PathPrefix, value: /a/}, method: GET, headers: [{name: X-A, value: b}], queryParams: [{name: q, value: "1"}]}]}]}`,
			base + `[{"field":"spec.rules[0]","sources":[{"identity":{"trustDomain":"","namespace":"shop","serviceAccount":"web"}},{"identity":{"trustDomain":"","namespace":"users","serviceAccount":""}},{"namespaces":"=team=a"},{"identity":{"trustDomain":"td","namespace":"a","serviceAccount":"b.c"}}],` +
				`"except":[{"identity":{"trustDomain":"","namespace":"users","serviceAccount":"guest"}}],"ranges":["10.0.0.0/8"],"ports":[80,9090],` +
				`"requests":[{"path":{"prefix":"/a"},"methods":["GET"],"headers":[{"name":"x-a","exact":"b"}],"query":[{"name":"q","exact":"1"}]}],"onlyRequests":true}]}`, nil},
		{"targets", `{targetRefs: [{kind: Pod, selector: {}}, {kind: Service, name: cart}, {kind: ServiceAccount, name: a.b}], action: Audit}`,
			`{"action":"Audit","targets":[{"pods":"="},{"service":"cart"},{"serviceAccount":"a.b"}],"rules":` + all, nil},

		{"an unknown action allows nothing", `{` + pods + `, action: Refuse}`, base + `null}`, []string{"Invalid spec.action"}},
		{"no target", `{targetRefs: []}`, `{"action":"Allow","targets":null,"rules":` + all, []string{"Missing spec.targetRefs"}},
		{"a target that cannot be read closes all pods", `{targetRefs: [{kind: Pod, selector: {matchExpressions: [{key: a, operator: Near}]}}]}`,
			`{"action":"Allow","targets":[{"pods":"="}],"rules":null}`, []string{"Invalid spec.targetRefs[0].selector"}},
		{"such a target of a denial is denied", `{targetRefs: [{kind: HTTPRoute, name: x}], action: Deny}`,
			`{"action":"Deny","targets":[{"pods":"="}],"rules":` + all, []string{"Invalid spec.targetRefs[0].kind"}},
		{"a target without a selector", `{targetRefs: [{kind: Pod}]}`, `{"action":"Allow","targets":[{"pods":"="}],"rules":null}`, []string{"Invalid spec.targetRefs[0].selector"}},
		{"a hostile name", `{targetRefs: [{kind: Service, name: "a/b\e[2J"}]}`, `{"action":"Allow","targets":[{"pods":"="}],"rules":null}`, []string{"Invalid spec.targetRefs[0].name"}},
		{"sources that cannot be read are nobody", `{` + pods + `, rules: [{sources: [{}, {spiffe: x, ipBlock: 10.0.0.0/8}, {spiffe: "spiffe://td/x"}, {serviceAccount: {namespace: "a b"}}, {serviceAccount: {name: "*"}}, {ipBlock: 10.0.0.0}, {namespaces: {matchLabels: {"a b": c}}}]}]}`,
			base + `[{"field":"spec.rules[0]","anyPort":true,"requests":[{}]}]}`, []string{
				"Invalid spec.rules[0].sources[0]", "Invalid spec.rules[0].sources[1]", "Invalid spec.rules[0].sources[2].spiffe", "Invalid spec.rules[0].sources[3].serviceAccount.namespace",
				"Invalid spec.rules[0].sources[4].serviceAccount.name", "Invalid spec.rules[0].sources[5].ipBlock", "Invalid spec.rules[0].sources[6].namespaces",
			}},
		{"of a denial they are everybody", `{` + pods + `, action: Deny, rules: [{sources: [{spiffe: x}]}, {sources: [{ipBlock: 10.0.0.0/8}]}]}`,
			denying + `[{"field":"spec.rules[0]","everyone":true,"anyPort":true,"requests":[{}]},{"field":"spec.rules[1]","everyone":true,"anyPort":true,"requests":[{}]}]}`,
			[]string{"Invalid spec.rules[0].sources[0].spiffe", "NotSupported spec.rules[1].sources[0].ipBlock"}},
		{"an exception that cannot be read takes its rule", `{` + pods + `, rules: [{notSources: [{spiffe: x}]}, {notSources: [{ipBlock: 10.0.0.0/8}]}]}`,
			base + `[{"field":"spec.rules[0]","everyone":true,"anyPort":true},{"field":"spec.rules[1]","everyone":true,"anyPort":true}]}`,
			[]string{"Invalid spec.rules[0].notSources[0].spiffe", "Invalid spec.rules[1].notSources[0].ipBlock"}},
		{"of a denial it is none", `{` + pods + `, action: Deny, rules: [{notSources: [{spiffe: x}]}]}`,
			denying + `[{"field":"spec.rules[0]","everyone":true,"anyPort":true,"requests":[{}]}]}`, []string{"Invalid spec.rules[0].notSources[0].spiffe"}},
		{"ports that are none", `{` + pods + `, rules: [{ports: [0, 70000, 80]}]}`, base + `[{"field":"spec.rules[0]","everyone":true,"ports":[80],"requests":[{}]}]}`,
			[]string{"Invalid spec.rules[0].ports[0]", "Invalid spec.rules[0].ports[1]"}},
		{"of a denial they are all", `{` + pods + `, action: Deny, rules: [{ports: [-1]}]}`, denying + all2(), []string{"Invalid spec.rules[0].ports[0]"}},
		{"requests that cannot be read", `{` + pods + `, rules: [{http: [{path: {type: Exact, value: x}}, {queryParams: [{type: RegularExpression, name: q, value: "a+"}]}, {method: GET}]}]}`,
			base + `[{"field":"spec.rules[0]","everyone":true,"anyPort":true,"requests":[{"methods":["GET"]}],"onlyRequests":true}]}`,
			[]string{"UnsupportedValue spec.rules[0].http[0].path.value", "Invalid spec.rules[0].http[1].queryParams[0].type"}},
		{"of a denial they are all requests", `{` + pods + `, action: Deny, rules: [{http: [{path: {type: RegularExpression, value: "("}}]}]}`,
			denying + strings.Replace(all2(), `[{}]}`, `[{}],"onlyRequests":true}`, 1), []string{"Invalid spec.rules[0].http[0]", "UnsupportedValue spec.rules[0].http[0].path.value"}},
	})
}

// TestClusterAccessPolicy reads those of the cluster, which name their namespaces.
func TestClusterAccessPolicy(t *testing.T) {
	const name = `{"namespace":"","name":"x","namespaces":`
	const all = name + `"=","action":`
	const none = `"targets":[{"pods":"="}],"rules":null}`
	const everything = `"targets":[{"pods":"="}],"rules":[{"field":"spec","everyone":true,"anyPort":true,"requests":[{}]}]}`
	one := func(rule string) string {
		return `"targets":[{"pods":"="}],"rules":[{"field":"spec.rules[0]",` + rule + `}]}`
	}
	check(t, "apiVersion: outrigger.dev/v1alpha1\nkind: ClusterAccessPolicy", []row{
		{"selectors", `{namespaceSelector: {matchLabels: {a: b}}, podSelector: {matchLabels: {c: d}}, action: Allow, rules: []}`,
			name + `"=a=b","action":"Allow","targets":[{"pods":"=c=d"}],"rules":null}`, nil},
		{"without rules everything", `{namespaceSelector: {}, action: Deny}`, all + `"Deny",` + everything, nil},
		{"callers and ports", `{namespaceSelector: {}, action: Allow, rules: [{sources: [{serviceAccount: {namespace: monitoring}}], ports: [9090]}]}`,
			all + `"Allow",` + one(`"sources":[{"identity":{"trustDomain":"","namespace":"monitoring","serviceAccount":""}}],"ports":[9090],"requests":[{}]`), nil},
		{"requests are denied only", `{namespaceSelector: {}, action: Deny, rules: [{notSources: [{serviceAccount: {namespace: a, name: b}}], http: [{method: GET}]}]}`,
			all + `"Deny",` + one(`"everyone":true,"except":[{"identity":{"trustDomain":"","namespace":"a","serviceAccount":"b"}}],"anyPort":true,"requests":[{"methods":["GET"]}],"onlyRequests":true`), nil},
		{"requests that would be allowed", `{namespaceSelector: {}, action: Allow, rules: [{http: [{method: GET}]}]}`,
			all + `"Allow",` + one(`"everyone":true,"anyPort":true,"onlyRequests":true`), []string{"Invalid spec.rules[0]"}},
		{"exceptions of what is allowed", `{namespaceSelector: {}, action: Allow, rules: [{notSources: []}]}`,
			all + `"Allow",` + one(`"everyone":true,"anyPort":true`), []string{"Invalid spec.rules[0]"}},
		{"addresses", `{namespaceSelector: {}, action: Allow, rules: [{sources: [{ipBlock: 10.0.0.0/8}]}]}`,
			all + `"Allow",` + one(`"ranges":["10.0.0.0/8"],"anyPort":true`), []string{"Invalid spec.rules[0]"}},
		{"an account without its namespace", `{namespaceSelector: {}, action: Allow, rules: [{sources: [{serviceAccount: {name: a}}]}]}`,
			all + `"Allow",` + one(`"anyPort":true,"requests":[{}]`), []string{"Invalid spec.rules[0].sources[0].serviceAccount.namespace"}},
		{"such an account is everybody where it is denied", `{namespaceSelector: {}, action: Deny, rules: [{sources: [{serviceAccount: {name: a}}]}]}`,
			all + `"Deny",` + one(`"everyone":true,"anyPort":true,"requests":[{}]`), []string{"Invalid spec.rules[0].sources[0].serviceAccount.namespace"}},
		{"no action", `{namespaceSelector: {}}`, all + `"Allow",` + none, []string{"Invalid spec.action"}},
		{"an audit", `{namespaceSelector: {}, action: Audit}`, all + `"Allow",` + none, []string{"Invalid spec.action"}},
		{"a selector that cannot be read allows nothing", `{namespaceSelector: {matchExpressions: [{key: a, operator: Near}]}, action: Allow}`, all + `"Allow",` + none, []string{"Invalid spec.namespaceSelector"}},
		{"and denies everywhere", `{namespaceSelector: {}, podSelector: {matchExpressions: [{key: a, operator: Near}]}, action: Deny}`, all + `"Deny",` + everything, []string{"Invalid spec.podSelector"}},
	})
}

func all2() string {
	return `[{"field":"spec.rules[0]","everyone":true,"anyPort":true,"requests":[{}]}]}`
}
