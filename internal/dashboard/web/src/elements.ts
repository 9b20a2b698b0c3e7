// From the mesh to the nodes and edges of the graph.

import type { Edge, Mesh, Workload } from './api'
import * as format from './format'

export interface Node {
  id: string
  kind: 'workload' | 'service' | 'refusal'
  label: string
  classes: string
}

export interface Line {
  id: string
  source: string
  target: string
  kind: 'call' | 'refused' | 'split' | 'member'
  label: string
  classes: string
  // Thickness in pixels.
  width: number
}

export interface Elements {
  nodes: Node[]
  lines: Line[]
}

export const workloadNode = (id: string) => 'w:' + id
export const serviceNode = (id: string) => 's:' + id
const refusalNode = (id: string) => 'r:' + id

export function elementsOf(mesh: Mesh): Elements {
  const nodes: Node[] = []
  const lines = new Map<string, Line>()
  for (const w of mesh.workloads) {
    nodes.push({ id: workloadNode(w.id), kind: 'workload', label: workloadLabel(w), classes: workloadClasses(mesh, w) })
  }
  const divided = new Set(mesh.splits.map((split) => split.service.namespace + '/' + split.service.name))
  for (const s of mesh.services) {
    nodes.push({ id: serviceNode(s.id), kind: 'service', label: s.name + '\n' + s.namespace, classes: '' })
    if (!divided.has(s.id)) for (const w of s.workloads) addMember(lines, s.id, w)
  }
  addSplits(lines, mesh)
  const known = new Set(nodes.map((n) => n.id))
  for (const e of mesh.edges) {
    if (!e.client) continue
    if (e.refused) addRefused(lines, nodes, known, e)
    if (e.service && e.rate > (e.refused ?? 0)) addCall(lines, e)
  }
  return { nodes, lines: [...lines.values()].filter((l) => known.has(l.source) && known.has(l.target)) }
}

function workloadLabel(w: Workload): string {
  const count = w.pods.length === 1 ? '1 pod' : w.pods.length + ' pods'
  return [w.name, w.namespace, (w.classes.join(', ') || 'no sidecar') + ' · ' + count].join('\n')
}

// A pod of manifests is never ready, because no kubelet reports it, so the proxy decides.
export const isHealthy = (w: Workload) => w.pods.every((p) => (p.class ? p.state === 'Current' || p.state === 'Waiting' : p.ready))

function workloadClasses(mesh: Mesh, w: Workload): string {
  const classes = w.classes.length === 1 ? ['class-' + w.classes[0]] : []
  if (w.classes.length === 0) classes.push('bare')
  const failing = w.pods.some((p) => p.state === 'Failing' || p.state === 'Rejected')
  const names = new Set(w.pods.map((p) => w.namespace + '/' + p.name))
  const problem = mesh.problems.some((p) => p.object.kind === 'Pod' && names.has(p.object.namespace + '/' + p.object.name))
  if (failing || problem) classes.push('trouble')
  else if (!isHealthy(w)) classes.push('unready')
  return classes.join(' ')
}

function addMember(lines: Map<string, Line>, service: string, workload: string) {
  const id = 'm:' + service + '>' + workload
  lines.set(id, { id, source: serviceNode(service), target: workloadNode(workload), kind: 'member', label: '', classes: '', width: 1 })
}

function addSplits(lines: Map<string, Line>, mesh: Mesh) {
  for (const split of mesh.splits) {
    const root = split.service.namespace + '/' + split.service.name
    const total = split.shares.reduce((sum, s) => sum + s.weight, 0)
    for (const s of split.shares) {
      const to = s.service.namespace + '/' + s.service.name
      if (to === root) continue
      const part = total ? s.weight / total : 0
      const id = 'p:' + root + '>' + to
      lines.set(id, {
        id, source: serviceNode(root), target: serviceNode(to), kind: 'split', label: format.share(part),
        classes: part ? '' : 'idle', width: 1 + 4 * part,
      })
    }
  }
}

export const edgeID = (e: Edge) => 'c:' + e.client + '>' + (e.service || e.server || '') + ':' + e.protocol

function addCall(lines: Map<string, Line>, e: Edge) {
  const id = edgeID(e)
  const parts = [format.rate(e.rate)]
  if (e.success < 1) parts.push(format.share(e.success))
  if (e.p95) parts.push(format.latency(e.p95))
  const lock = e.tls === 'mutual' ? '🔒 ' : e.tls ? '⚠ ' : ''
  lines.set(id, {
    id, source: workloadNode(e.client!), target: serviceNode(e.service!), kind: 'call', label: lock + parts.join(' · '),
    classes: [e.success < 0.95 ? 'failing' : e.success < 0.999 ? 'degraded' : '', e.tls === 'none' ? 'plaintext' : ''].join(' ').trim(),
    width: 1.5 + Math.min(4, Math.log10(1 + e.rate)),
  })
}

function addRefused(lines: Map<string, Line>, nodes: Node[], known: Set<string>, e: Edge) {
  let target = e.service ? serviceNode(e.service) : e.server ? workloadNode(e.server) : ''
  if (!target) {
    target = refusalNode(e.client!)
    if (!known.has(target)) {
      known.add(target)
      nodes.push({ id: target, kind: 'refusal', label: 'no rule', classes: '' })
    }
  }
  const id = 'x:' + workloadNode(e.client!) + '>' + target
  lines.set(id, {
    id, source: workloadNode(e.client!), target, kind: 'refused', label: '✕ refused ' + format.rate(e.refused!), classes: '', width: 2,
  })
}
