// The panel beside the graph, about the selected node or edge.

import type { Edge, Mesh } from './api'
import { calledOf, lock } from './calls'
import { edgeID, serviceNode, workloadNode } from './elements'
import * as format from './format'

interface Props {
  mesh: Mesh
  id: string
  onClose: () => void
  onSelect: (id: string) => void
}

export function Details(props: Props) {
  const name = props.id.slice(2)
  return (
    <section class="details" aria-label="Selected">
      <button class="close" onClick={props.onClose} aria-label="Close (Esc)">×</button>
      {props.id.startsWith('w:') && <WorkloadDetails {...props} name={name} />}
      {props.id.startsWith('s:') && <ServiceDetails {...props} name={name} />}
      {props.id.startsWith('r:') && <RefusalDetails {...props} name={name} />}
      {props.id.startsWith('c:') && props.mesh.edges.filter((e) => edgeID(e) === props.id).map((e, i) => <Call key={i} edge={e} />)}
      {props.id.startsWith('x:') && props.mesh.edges.filter((e) => e.refused && props.id.startsWith('x:' + workloadNode(e.client ?? '') + '>')).map((e, i) => <Call key={i} edge={e} />)}
      {(props.id.startsWith('p:') || props.id.startsWith('m:')) && <h3>{name.replace('>', ' → ')}</h3>}
    </section>
  )
}

function WorkloadDetails({ mesh, name }: Props & { name: string }) {
  const w = mesh.workloads.find((w) => w.id === name)
  if (!w) return <p>It is gone.</p>
  return (
    <>
      <h3>{w.name}</h3>
      <p class="soft">{w.kind} in {w.namespace}, service account {w.serviceAccount}, {w.classes.join(', ') || 'no sidecar'}</p>
      <p><a class="action" href={'#/workload/' + w.id}>Policies, proxies, configuration, certificates →</a></p>
      <Traffic title="Calls" edges={mesh.edges.filter((e) => e.client === w.id && (!e.server || e.refused))} of={calledOf} />
      <Traffic title="Is called by" edges={mesh.edges.filter((e) => e.server === w.id)} of={(e) => e.client || 'unknown'} />
    </>
  )
}

function ServiceDetails({ mesh, name, onSelect }: Props & { name: string }) {
  const s = mesh.services.find((s) => s.id === name)
  if (!s) return <p>It is gone.</p>
  return (
    <>
      <h3>{s.name}</h3>
      <p class="soft">Service in {s.namespace}: {s.ports.map((p) => `${p.port} ${p.protocol}`).join(', ')}</p>
      <Traffic title="Is called by" edges={mesh.edges.filter((e) => e.service === s.id)} of={(e) => e.client || 'unknown'} />
      <h4>Workloads</h4>
      <ul>{s.workloads.map((w) => <li key={w}><button class="link" onClick={() => onSelect(workloadNode(w))}>{w}</button></li>)}</ul>
      {mesh.splits.filter((p) => p.service.namespace + '/' + p.service.name === s.id).map((p, i) => (
        <div key={i}>
          <h4>Split of port {p.service.port} by {p.route || 'its policy'}</h4>
          <ul>{p.shares.map((share, j) => (
            <li key={j}><button class="link" onClick={() => onSelect(serviceNode(share.service.namespace + '/' + share.service.name))}>{share.service.name}</button>: weight {share.weight}</li>
          ))}</ul>
        </div>
      ))}
    </>
  )
}

function RefusalDetails({ mesh, name }: Props & { name: string }) {
  return (
    <>
      <h3>Refused calls of {name}</h3>
      {mesh.edges.filter((e) => e.client === name && e.refused && !e.service && !e.server).map((e, i) => <Call key={i} edge={e} />)}
    </>
  )
}

function Traffic(props: { title: string; edges: Edge[]; of: (e: Edge) => string }) {
  if (props.edges.length === 0) return null
  return (
    <>
      <h4>{props.title}</h4>
      <ul class="traffic">
        {props.edges.map((e, i) => (
          <li key={i} class={e.refused ? 'refused' : ''}>
            <span>{e.tls === 'mutual' ? '🔒 ' : ''}{props.of(e)}</span>
            <span class="soft">{format.rate(e.rate)}{e.refused ? `, refused ${format.rate(e.refused)}` : e.rate ? ` · ${format.share(e.success)} · p95 ${format.latency(e.p95)}` : ''}</span>
          </li>
        ))}
      </ul>
    </>
  )
}

function Call({ edge }: { edge: Edge }) {
  return (
    <>
      <h3>{edge.client || 'unknown'} → {calledOf(edge)}</h3>
      <dl>
        <dt>Protocol</dt><dd>{edge.protocol}</dd>
        <dt>mTLS</dt><dd>{lock(edge)}</dd>
        <dt>Rate</dt><dd>{format.rate(edge.rate)}</dd>
        {edge.rate > 0 && <><dt>Success</dt><dd>{format.share(edge.success)}</dd></>}
        {edge.p50 > 0 && <><dt>Latency</dt><dd>p50 {format.latency(edge.p50)}, p95 {format.latency(edge.p95)}, p99 {format.latency(edge.p99)}</dd></>}
        {edge.refused && <><dt>Refused</dt><dd>{format.rate(edge.refused)}{edge.reason && ', ' + edge.reason.replaceAll('_', ' ')}</dd></>}
      </dl>
      {edge.rule && edge.rule.length > 0 && <><h4>Why</h4><ul class="rule">{edge.rule.map((line, i) => <li key={i}>{line}</li>)}</ul></>}
    </>
  )
}
