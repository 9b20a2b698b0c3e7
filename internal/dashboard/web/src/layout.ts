// Positions of the nodes: callers on the left, what they call on the right.

import * as dagre from '@dagrejs/dagre'
import type { Elements, Node } from './elements'

export type Positions = Map<string, { x: number; y: number }>

export function sizeOf(node: Node): { width: number; height: number } {
  const lines = node.label.split('\n')
  const longest = Math.max(...lines.map((l) => l.length))
  return { width: Math.max(90, longest * 7 + 24), height: node.kind === 'workload' ? 58 : node.kind === 'service' ? 44 : 26 }
}

export function layout(elements: Elements): Positions {
  const graph = new dagre.graphlib.Graph()
  graph.setGraph({ rankdir: 'LR', nodesep: 26, ranksep: 150, edgesep: 16, marginx: 20, marginy: 20, ranker: elements.nodes.length > 100 ? 'longest-path' : 'network-simplex' })
  graph.setDefaultEdgeLabel(() => ({}))
  const linked = new Set(elements.lines.flatMap((l) => [l.source, l.target]))
  const alone = elements.nodes.filter((n) => !linked.has(n.id))
  for (const node of elements.nodes) if (linked.has(node.id)) graph.setNode(node.id, { ...sizeOf(node) })
  for (const line of elements.lines) graph.setEdge(line.source, line.target)
  dagre.layout(graph)
  const positions: Positions = new Map()
  let bottom = 0
  for (const id of graph.nodes()) {
    const { x, y } = graph.node(id) as { x: number; y: number }
    positions.set(id, { x, y })
    bottom = Math.max(bottom, y)
  }
  // Nodes without edges fill rows below the others.
  const perRow = Math.max(4, Math.ceil(Math.sqrt(alone.length * 2)))
  alone.forEach((node, i) => positions.set(node.id, { x: 90 + (i % perRow) * 190, y: bottom + 110 + Math.floor(i / perRow) * 80 }))
  return positions
}
