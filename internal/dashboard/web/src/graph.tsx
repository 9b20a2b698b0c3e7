// The graph of services and workloads.

import cytoscape from 'cytoscape'
import { useEffect, useRef } from 'preact/hooks'
import type { Elements } from './elements'
import { layout, sizeOf } from './layout'
import { styles } from './graphstyle'

export interface Selection {
  // The id of a node or an edge, or empty.
  id: string
}

interface Props {
  elements: Elements
  selected: string
  // Ids of the nodes that a search has found, or undefined without a search.
  found?: Set<string>
  theme: string
  onSelect: (id: string) => void
  onOpen: (id: string) => void
  register: (graph: Controls) => void
}

export interface Controls {
  fit: () => void
  zoom: (factor: number) => void
  pan: (x: number, y: number) => void
}

// From this number of elements on, details are left out while the graph moves.
const many = 150

export function Graph(props: Props) {
  const container = useRef<HTMLDivElement>(null)
  const graph = useRef<cytoscape.Core>(undefined)
  const handlers = useRef(props)
  handlers.current = props
  useEffect(() => {
    const large = props.elements.nodes.length > many
    const cy = cytoscape({
      container: container.current, style: styles(), minZoom: 0.05, maxZoom: 3,
      boxSelectionEnabled: false, autounselectify: true,
      textureOnViewport: large, hideEdgesOnViewport: false, pixelRatio: large ? 1 : 'auto',
    })
    graph.current = cy
    cy.on('tap', (event) => handlers.current.onSelect(event.target === cy ? '' : (event.target.id() as string)))
    cy.on('dbltap', 'node', (event) => handlers.current.onOpen(event.target.id() as string))
    const fit = () => void cy.animate({ fit: { eles: cy.elements(), padding: 30 }, duration: 200 })
    props.register({
      fit,
      zoom: (factor) => cy.zoom({ level: cy.zoom() * factor, renderedPosition: { x: cy.width() / 2, y: cy.height() / 2 } }),
      pan: (x, y) => cy.panBy({ x, y }),
    })
    return () => cy.destroy()
  }, [])
  useEffect(() => {
    graph.current?.style(styles())
  }, [props.theme])
  useEffect(() => {
    if (graph.current) draw(graph.current, props.elements)
  }, [props.elements])
  useEffect(() => {
    const cy = graph.current
    if (cy) highlight(cy, props.selected, props.found)
  }, [props.selected, props.found, props.elements])
  return <div class="graph" ref={container} role="img" aria-label="Graph of the mesh. The tab Calls has the same as a table." />
}

// draw changes what differs. Positions are computed anew only when nodes or edges come or go.
function draw(cy: cytoscape.Core, elements: Elements) {
  const wanted = new Set([...elements.nodes, ...elements.lines].map((e) => e.id))
  const first = cy.elements().empty()
  let changed = false
  cy.batch(() => {
    const gone = cy.elements().filter((e) => !wanted.has(e.id()))
    changed = gone.nonempty()
    gone.remove()
    for (const node of elements.nodes) {
      const classes = node.kind + ' ' + node.classes
      const old = cy.getElementById(node.id)
      if (old.empty()) {
        changed = true
        cy.add({ group: 'nodes', data: { id: node.id, label: node.label, ...sizeOf(node) }, classes })
      } else {
        update(old, node.label, classes)
      }
    }
    for (const line of elements.lines) {
      const classes = line.kind + ' ' + line.classes
      const old = cy.getElementById(line.id)
      if (old.empty()) {
        changed = true
        cy.add({ group: 'edges', data: { id: line.id, source: line.source, target: line.target, label: line.label, thickness: line.width }, classes })
      } else {
        update(old, line.label, classes)
        if (old.data('thickness') !== line.width) old.data('thickness', line.width)
      }
    }
  })
  if (changed) {
    const positions = layout(elements)
    cy.layout({ name: 'preset', positions: (node: string | cytoscape.NodeSingular) => positions.get(typeof node === 'string' ? node : node.id())!, fit: first, padding: 30 } as cytoscape.PresetLayoutOptions).run()
  }
}

function update(element: cytoscape.CollectionReturnValue, label: string, classes: string) {
  if (element.data('label') !== label) element.data('label', label)
  if (element.scratch('_classes') !== classes) {
    element.classes(classes)
    element.scratch('_classes', classes)
  }
}

function highlight(cy: cytoscape.Core, selected: string, found?: Set<string>) {
  cy.batch(() => {
    cy.elements().removeClass('selected dim')
    const chosen = selected ? cy.getElementById(selected) : cy.collection()
    if (chosen.nonempty()) {
      chosen.addClass('selected')
      const near = chosen.closedNeighborhood().union(chosen.edges().connectedNodes())
      cy.elements().not(near).addClass('dim')
    } else if (found) {
      const hits = cy.nodes().filter((n) => found.has(n.id()))
      cy.elements().not(hits).not(hits.edgesWith(hits)).addClass('dim')
    }
  })
}
