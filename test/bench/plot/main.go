// Command plot draws charts as SVG. It reads them as JSON from standard input and writes the
// files into the folder of its argument.
package main

import (
	"encoding/json"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Chart is a row of panels with the same axes, both logarithmic.
type Chart struct {
	// File is the name of the file, without its folder.
	File string
	// X and Y are the labels of the axes.
	X, Y   string
	Panels []Panel
}

// Panel has a line for each series. A series with the same name has the same colour in all
// panels of a chart.
type Panel struct {
	Title  string
	Series []Series
}

// Series is a line through points, which have an x and a positive y.
type Series struct {
	Name   string
	Points [][2]float64
}

const (
	panelWidth  = 3.4 * vg.Inch
	panelHeight = 3.2 * vg.Inch
	legendWidth = 1.6 * vg.Inch
)

// colors can be told apart on paper and by people who see red and green alike.
var colors = []color.Color{
	color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0xd5, 0x5e, 0x00, 0xff}, color.RGBA{0x00, 0x9e, 0x73, 0xff},
	color.RGBA{0xcc, 0x79, 0xa7, 0xff}, color.RGBA{0xb8, 0x86, 0x0b, 0xff}, color.RGBA{0x56, 0xb4, 0xe9, 0xff},
	color.RGBA{0x00, 0x00, 0x00, 0xff}, color.RGBA{0x80, 0x80, 0x80, 0xff}, color.RGBA{0x80, 0x00, 0x20, 0xff},
}

var gridColor = color.Gray{0xc8}

func main() {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: plot FOLDER <charts.json")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

func run(folder string) error {
	var charts []Chart
	if err := json.NewDecoder(os.Stdin).Decode(&charts); err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	for _, c := range charts {
		if err := c.write(filepath.Join(folder, c.File)); err != nil {
			return fmt.Errorf("%s: %w", c.File, err)
		}
	}
	return nil
}

// write draws the chart, with a legend at the right.
func (c *Chart) write(file string) error {
	canvas := vgsvg.New(panelWidth*vg.Length(len(c.Panels))+legendWidth, panelHeight)
	all := draw.New(canvas)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())
	names, x, y := c.extent()
	legend := plot.NewLegend()
	legend.Top, legend.Left, legend.Padding = true, true, vg.Points(2)
	inLegend := make(map[string]bool)
	for i, panel := range c.Panels {
		p := plot.New()
		p.Title.Text, p.X.Label.Text, p.Y.Label.Text = panel.Title, c.X, c.Y
		p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
		p.X.Tick.Marker, p.Y.Tick.Marker = plot.TickerFunc(x.sizes), plot.TickerFunc(ticks)
		grid := plotter.NewGrid()
		grid.Vertical.Color, grid.Horizontal.Color = gridColor, gridColor
		p.Add(grid)
		for _, s := range panel.Series {
			line, points, err := s.draw(names[s.Name])
			if err != nil {
				return fmt.Errorf("%s, %s: %w", panel.Title, s.Name, err)
			}
			p.Add(line, points)
			if !inLegend[s.Name] {
				inLegend[s.Name] = true
				legend.Add(s.Name, line, points)
			}
		}
		// Adding a plotter widens the axes to its own points.
		p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = x.min/1.15, x.max*1.15, y.min, y.max
		left := panelWidth * vg.Length(i)
		p.Draw(draw.Crop(all, left, left+panelWidth-all.Max.X, 0, 0))
	}
	legend.Draw(draw.Crop(all, panelWidth*vg.Length(len(c.Panels))+vg.Points(6), 0, 0, -vg.Points(20)))
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(out); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// axis is the range of an axis, and the values in it that have a tick.
type axis struct {
	min, max float64
	values   []float64
}

func (a *axis) add(value float64) {
	a.min, a.max = min(a.min, value), max(a.max, value)
	a.values = append(a.values, value)
}

// sizes has a tick for each value.
func (a *axis) sizes(float64, float64) []plot.Tick {
	var out []plot.Tick
	for _, value := range slices.Compact(slices.Sorted(slices.Values(a.values))) {
		out = append(out, plot.Tick{Value: value, Label: strconv.FormatFloat(value, 'f', -1, 64)})
	}
	return out
}

// extent numbers the series and returns the axes. That of y ends at powers of ten.
func (c *Chart) extent() (names map[string]int, x, y *axis) {
	names = make(map[string]int)
	x, y = &axis{min: math.Inf(1)}, &axis{min: math.Inf(1)}
	for _, panel := range c.Panels {
		for _, s := range panel.Series {
			if _, known := names[s.Name]; !known {
				names[s.Name] = len(names)
			}
			for _, point := range s.Points {
				x.add(point[0])
				y.add(point[1])
			}
		}
	}
	y.min, y.max = math.Pow10(int(math.Floor(math.Log10(y.min)))), math.Pow10(int(math.Ceil(math.Log10(y.max))))
	if y.min == y.max {
		y.max *= 10
	}
	return names, x, y
}

// ticks has a tick with a label at each power of ten, and ticks without a label between.
func ticks(low, high float64) []plot.Tick {
	var out []plot.Tick
	for power := math.Pow10(int(math.Floor(math.Log10(low)))); power <= high; power *= 10 {
		out = append(out, plot.Tick{Value: power, Label: strconv.FormatFloat(power, 'f', -1, 64)})
		for n := 2.0; n < 10; n++ {
			if n*power <= high {
				out = append(out, plot.Tick{Value: n * power})
			}
		}
	}
	return out
}

func (s *Series) draw(number int) (*plotter.Line, *plotter.Scatter, error) {
	points := make(plotter.XYs, len(s.Points))
	for i, point := range s.Points {
		points[i] = plotter.XY{X: point[0], Y: point[1]}
	}
	line, marks, err := plotter.NewLinePoints(points)
	if err != nil {
		return nil, nil, err
	}
	line.Color, marks.Color = colors[number%len(colors)], colors[number%len(colors)]
	line.Width, marks.Radius = vg.Points(1.2), vg.Points(2.2)
	marks.Shape = draw.CircleGlyph{}
	if number >= len(colors) {
		line.Dashes = []vg.Length{vg.Points(4), vg.Points(2)}
	}
	return line, marks, nil
}
