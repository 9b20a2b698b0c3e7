// The look of the graph, in the colours of style.css.

import type { StylesheetJson } from 'cytoscape'

export function styles(): StylesheetJson {
  const all = getComputedStyle(document.documentElement)
  const color = (name: string) => all.getPropertyValue('--' + name).trim()
  const font = 'system-ui, "Segoe UI", "Liberation Sans", "DejaVu Sans", sans-serif'
  return [
    {
      selector: 'node',
      style: {
        label: 'data(label)', width: 'data(width)', height: 'data(height)', shape: 'round-rectangle',
        'text-wrap': 'wrap', 'text-valign': 'center', 'text-halign': 'center', 'font-family': font, 'font-size': 11,
        'line-height': 1.25, color: color('text'), 'background-color': color('card'), 'border-width': 1.5, 'border-color': color('line'),
        'min-zoomed-font-size': 5,
      },
    },
    { selector: 'node.service', style: { 'corner-radius': '22', 'background-color': color('service'), 'border-color': color('service-line') } },
    { selector: 'node.refusal', style: { shape: 'round-octagon', 'background-color': color('bad-soft'), 'border-color': color('bad'), color: color('bad') } },
    { selector: 'node.class-envoy', style: { 'border-color': color('envoy') } },
    { selector: 'node.class-pipy', style: { 'border-color': color('pipy') } },
    { selector: 'node.class-haproxy', style: { 'border-color': color('haproxy') } },
    { selector: 'node.class-grpc', style: { 'border-color': color('grpc') } },
    { selector: 'node.bare', style: { 'border-style': 'dashed' } },
    { selector: 'node.unready', style: { 'background-color': color('warn-soft') } },
    { selector: 'node.trouble', style: { 'background-color': color('bad-soft') } },
    {
      selector: 'edge',
      style: {
        width: 'data(thickness)', 'curve-style': 'bezier', 'target-arrow-shape': 'triangle', 'arrow-scale': 0.9,
        'line-color': color('line'), 'target-arrow-color': color('line'), label: 'data(label)', 'font-family': font, 'font-size': 10.5,
        color: color('text'), 'text-background-color': color('page'), 'text-background-opacity': 0.9, 'text-background-padding': '2px',
        'text-background-shape': 'roundrectangle', 'min-zoomed-font-size': 6,
      },
    },
    { selector: 'edge.member', style: { 'line-color': color('faint'), 'target-arrow-color': color('faint') } },
    { selector: 'edge.split', style: { 'line-style': 'dashed', 'line-color': color('service-line'), 'target-arrow-color': color('service-line') } },
    { selector: 'edge.idle', style: { opacity: 0.5 } },
    { selector: 'edge.call', style: { 'line-color': color('good'), 'target-arrow-color': color('good') } },
    { selector: 'edge.degraded', style: { 'line-color': color('warn'), 'target-arrow-color': color('warn') } },
    { selector: 'edge.failing', style: { 'line-color': color('bad'), 'target-arrow-color': color('bad') } },
    {
      selector: 'edge.refused',
      style: { 'line-color': color('bad'), 'target-arrow-color': color('bad'), 'line-style': 'dashed', 'target-arrow-shape': 'tee', color: color('bad'), 'font-weight': 'bold' },
    },
    { selector: '.dim', style: { opacity: 0.18 } },
    { selector: 'node.selected', style: { 'border-width': 3.5 } },
    { selector: 'edge.selected', style: { 'font-size': 13, 'z-index': 10 } },
  ]
}
