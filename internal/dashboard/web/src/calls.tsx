// The calls as a table.

import type { Edge, Mesh } from './api'
import { edgeID } from './elements'
import * as format from './format'

interface Props {
  mesh: Mesh
  query: string
  onSelect: (id: string) => void
}

export function Calls({ mesh, query, onSelect }: Props) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean)
  // What both ends have measured is shown as the client did, which knows the service.
  const edges = mesh.edges.filter((e) => (e.service || e.refused || !e.client || !e.server) && words.every((word) => [e.client, e.service, e.server, e.protocol, e.reason].join(' ').toLowerCase().includes(word)))
  if (!mesh.measured) return <p class="empty">Traffic is not measured.</p>
  if (edges.length === 0) return <p class="empty">No calls{query && ' of that name'}.</p>
  return (
    <div class="scroll">
      <EdgeTable edges={edges} onSelect={onSelect} />
    </div>
  )
}

export function EdgeTable({ edges, onSelect }: { edges: Edge[]; onSelect?: (id: string) => void }) {
  return (
    <table class="calls">
      <thead>
        <tr><th>Client</th><th>Called</th><th>Protocol</th><th>mTLS</th><th class="n">Rate</th><th class="n">Success</th><th class="n">p50</th><th class="n">p95</th><th class="n">p99</th><th>Refused</th></tr>
      </thead>
      <tbody>
        {edges.map((e, i) => (
          <tr key={i} class={e.refused ? 'refused' : ''} onClick={() => onSelect?.(edgeID(e))}>
            <td>{e.client || 'unknown'}</td>
            <td>{calledOf(e)}</td>
            <td>{e.protocol}</td>
            <td>{lock(e)}</td>
            <td class="n">{format.rate(e.rate)}</td>
            <td class="n">{e.rate ? format.share(e.success) : '–'}</td>
            <td class="n">{format.latency(e.p50)}</td>
            <td class="n">{format.latency(e.p95)}</td>
            <td class="n">{format.latency(e.p99)}</td>
            <td>{e.refused ? <Refusal edge={e} /> : ''}</td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}

export function calledOf(e: Edge): string {
  return e.service || e.server || (e.refused ? 'not allowed' : 'outside of the mesh')
}

export function lock(e: Edge): string {
  return e.tls === 'mutual' ? '🔒 yes' : e.tls === 'tls' ? 'TLS only' : e.tls === 'none' ? '⚠ no' : '–'
}

export function Refusal({ edge }: { edge: Edge }) {
  return (
    <details>
      <summary>{format.rate(edge.refused ?? 0)}{edge.reason && ': ' + edge.reason.replaceAll('_', ' ')}</summary>
      <ul class="rule">{(edge.rule ?? []).map((line, i) => <li key={i}>{line}</li>)}</ul>
    </details>
  )
}
