package monitoring

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Dashboard is a dashboard in Grafana's JSON model, with the fields that these dashboards use.
type Dashboard struct {
	UID           string     `json:"uid"`
	Title         string     `json:"title"`
	Description   string     `json:"description"`
	Tags          []string   `json:"tags"`
	Editable      bool       `json:"editable"`
	GraphTooltip  int        `json:"graphTooltip"`
	Refresh       string     `json:"refresh"`
	SchemaVersion int        `json:"schemaVersion"`
	Time          timeRange  `json:"time"`
	Links         []link     `json:"links"`
	Templating    templating `json:"templating"`
	Panels        []*Panel   `json:"panels"`
}

type timeRange struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// link leads to the other dashboards with the same tag.
type link struct {
	Type       string   `json:"type"`
	Title      string   `json:"title"`
	Tags       []string `json:"tags"`
	AsDropdown bool     `json:"asDropdown"`
	KeepTime   bool     `json:"keepTime"`
}

type templating struct {
	List []Variable `json:"list"`
}

// Variable is a variable of a dashboard, which the user chooses.
type Variable struct {
	Name  string `json:"name"`
	Label string `json:"label"`
	// Type is "datasource" or "query".
	Type string `json:"type"`
	// Query is the kind of data source, or PromQL in Grafana's query_result().
	Query      string      `json:"query"`
	Definition string      `json:"definition,omitempty"`
	Regex      string      `json:"regex,omitempty"`
	Datasource *datasource `json:"datasource,omitempty"`
	Refresh    int         `json:"refresh,omitempty"`
	Sort       int         `json:"sort,omitempty"`
	Multi      bool        `json:"multi,omitempty"`
	IncludeAll bool        `json:"includeAll,omitempty"`
	AllValue   string      `json:"allValue,omitempty"`
	Current    *choice     `json:"current,omitempty"`
}

type choice struct {
	Text  string `json:"text"`
	Value string `json:"value"`
}

type datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

// Panel is a panel, or the title of a row of panels.
type Panel struct {
	ID              int              `json:"id"`
	Type            string           `json:"type"`
	Title           string           `json:"title"`
	Description     string           `json:"description,omitempty"`
	GridPos         Position         `json:"gridPos"`
	Datasource      *datasource      `json:"datasource,omitempty"`
	FieldConfig     *fieldConfig     `json:"fieldConfig,omitempty"`
	Options         map[string]any   `json:"options,omitempty"`
	Targets         []Target         `json:"targets,omitempty"`
	Transformations []transformation `json:"transformations,omitempty"`
	// Panels are those of a collapsed row, of which there is none.
	Panels []*Panel `json:"panels,omitempty"`
}

// Position is a panel's place in the grid of 24 columns.
type Position struct {
	H int `json:"h"`
	W int `json:"w"`
	X int `json:"x"`
	Y int `json:"y"`
}

type fieldConfig struct {
	Defaults  fieldDefaults `json:"defaults"`
	Overrides []override    `json:"overrides"`
}

type fieldDefaults struct {
	Unit string `json:"unit,omitempty"`
	Min  *int   `json:"min,omitempty"`
	Max  *int   `json:"max,omitempty"`
	// NoValue is shown in place of no data.
	NoValue string `json:"noValue,omitempty"`
}

type override struct {
	Matcher    matcher    `json:"matcher"`
	Properties []property `json:"properties"`
}

type matcher struct {
	ID      string `json:"id"`
	Options string `json:"options"`
}

type property struct {
	ID    string `json:"id"`
	Value any    `json:"value"`
}

// Target is a query of a panel.
type Target struct {
	RefID        string      `json:"refId"`
	Expr         string      `json:"expr"`
	LegendFormat string      `json:"legendFormat,omitempty"`
	Format       string      `json:"format,omitempty"`
	Instant      bool        `json:"instant,omitempty"`
	Datasource   *datasource `json:"datasource"`
}

type transformation struct {
	ID      string         `json:"id"`
	Options map[string]any `json:"options"`
}

// Units are Grafana's names of units.
const (
	unitRequests = "reqps"
	unitOps      = "ops"
	unitShare    = "percentunit"
	unitSeconds  = "s"
	unitBytes    = "bytes"
	unitByteRate = "Bps"
	unitCount    = "short"
	unitCores    = "none"
)

const (
	tag = "outrigger"
	// gridWidth is the number of columns, schemaVersion the version of the JSON model, which
	// Grafana 10 and later read.
	gridWidth     = 24
	schemaVersion = 39
)

// prometheus is the data source that the user chooses.
var prometheus = &datasource{Type: "prometheus", UID: "${datasource}"}

// query is a query with its legend, in which {{label}} is a label's value. In a table the
// legend is the title of the column.
type query struct{ expr, legend string }

func newDashboard(name, title, description string, variables ...Variable) *Dashboard {
	choose := Variable{Name: "datasource", Label: "Data source", Type: "datasource", Query: "prometheus"}
	return &Dashboard{
		UID: "outrigger-" + name, Title: "Outrigger / " + title, Description: description, Tags: []string{tag}, Editable: true,
		GraphTooltip: 1, Refresh: "30s", SchemaVersion: schemaVersion, Time: timeRange{"now-1h", "now"},
		Links:      []link{{Type: "dashboards", Title: "Outrigger", Tags: []string{tag}, AsDropdown: true, KeepTime: true}},
		Templating: templating{append([]Variable{choose}, variables...)},
	}
}

// values is a variable with the values of a label in the result of an expression.
func values(name, title, label, expr string) Variable {
	text := "query_result(" + expr + ")"
	return Variable{
		Name: name, Label: title, Type: "query", Query: text, Definition: text, Regex: fmt.Sprintf(`/%s="([^"]+)"/`, label),
		Datasource: prometheus, Refresh: 2, Sort: 1,
	}
}

// orAll lets the user choose several values or all.
func orAll(v Variable) Variable {
	v.Multi, v.IncludeAll, v.AllValue, v.Current = true, true, ".*", &choice{"All", "$__all"}
	return v
}

// row begins a row with a title.
func (d *Dashboard) row(title string) {
	d.add(&Panel{Type: "row", Title: title}, gridWidth, 1)
}

// stat adds a number.
func (d *Dashboard) stat(title, description, unit, expr string) {
	d.add(&Panel{
		Type: "stat", Title: title, Description: description, Datasource: prometheus, FieldConfig: fields(unit),
		Options: map[string]any{
			"reduceOptions": map[string]any{"calcs": []string{"lastNotNull"}, "fields": "", "values": false},
			"colorMode":     "none", "graphMode": "area",
		},
		Targets: targets([]query{{expr, title}}),
	}, 4, 4)
}

// graph adds a graph over time.
func (d *Dashboard) graph(title, description, unit string, queries ...query) {
	d.add(&Panel{
		Type: "timeseries", Title: title, Description: description, Datasource: prometheus, FieldConfig: fields(unit),
		Options: map[string]any{
			"legend":  map[string]any{"displayMode": "list", "placement": "bottom", "showLegend": true},
			"tooltip": map[string]any{"mode": "multi", "sort": "desc"},
		},
		Targets: targets(queries),
	}, 8, 8)
}

// column is a column of a table.
type column struct{ title, unit, expr string }

// table adds a table of current values, in which queries with the same labels are one row.
func (d *Dashboard) table(title, description string, columns ...column) {
	p := &Panel{Type: "table", Title: title, Description: description, Datasource: prometheus, FieldConfig: fields("")}
	rename := map[string]any{}
	for i, c := range columns {
		id := refID(i)
		p.Targets = append(p.Targets, Target{RefID: id, Expr: c.expr, LegendFormat: c.title, Format: "table", Instant: true, Datasource: prometheus})
		name := "Value #" + id
		if len(columns) == 1 {
			name = "Value"
		}
		rename[name] = c.title
		p.FieldConfig.Overrides = append(p.FieldConfig.Overrides, override{matcher{"byName", c.title}, []property{{"unit", c.unit}}})
	}
	p.Transformations = []transformation{
		{"merge", map[string]any{}},
		{"organize", map[string]any{"excludeByName": map[string]any{"Time": true}, "renameByName": rename}},
	}
	d.add(p, gridWidth, 8)
}

func fields(unit string) *fieldConfig {
	f := &fieldConfig{Defaults: fieldDefaults{Unit: unit, Min: new(0)}, Overrides: []override{}}
	if unit == unitShare {
		f.Defaults.Max = new(1)
	}
	return f
}

func targets(queries []query) []Target {
	var all []Target
	for i, q := range queries {
		all = append(all, Target{RefID: refID(i), Expr: q.expr, LegendFormat: q.legend, Datasource: prometheus})
	}
	return all
}

func refID(i int) string { return string(rune('A' + i)) }

// add puts a panel right of the last one, or below if there is no room.
func (d *Dashboard) add(p *Panel, width, height int) {
	p.ID = len(d.Panels) + 1
	p.GridPos = Position{W: width, H: height}
	if len(d.Panels) > 0 {
		last := d.Panels[len(d.Panels)-1].GridPos
		p.GridPos.X, p.GridPos.Y = last.X+last.W, last.Y
		if p.GridPos.X+width > gridWidth || last.H != height {
			p.GridPos.X, p.GridPos.Y = 0, last.Y+last.H
		}
	}
	d.Panels = append(d.Panels, p)
}

// Query is an expression of PromQL and the place that contains it.
type Query struct{ Where, Expr string }

// Queries returns the queries of all panels and variables. They contain variables of the
// dashboard and of Grafana, such as $__rate_interval.
func (d *Dashboard) Queries() []Query {
	var all []Query
	for _, v := range d.Templating.List {
		if expr, found := strings.CutPrefix(v.Query, "query_result("); found {
			all = append(all, Query{d.Title + ", variable " + v.Name, strings.TrimSuffix(expr, ")")})
		}
	}
	for _, p := range d.Panels {
		for _, t := range p.Targets {
			all = append(all, Query{fmt.Sprintf("%s, panel %q, query %s", d.Title, p.Title, t.RefID), t.Expr})
		}
	}
	return all
}

// JSON returns the dashboard as Grafana imports it.
func (d *Dashboard) JSON() ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	err := encoder.Encode(d)
	return out.Bytes(), err
}
