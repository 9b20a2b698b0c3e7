package inject

// RuleNames returns the names of the decision table's rules, in order.
func RuleNames() []string {
	var names []string
	for _, r := range rules {
		names = append(names, r.name)
	}
	return names
}
