// The list of workloads and services: what the search finds, and the way there by keyboard.

import type { Mesh, Service, Workload } from './api'
import { isHealthy, serviceNode, workloadNode } from './elements'

export interface Hits {
  workloads: Workload[]
  services: Service[]
}

// search finds what has all words in its name, namespace, class, service account or pods.
export function search(mesh: Mesh, query: string): Hits {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean)
  const matches = (text: string) => words.every((word) => text.toLowerCase().includes(word))
  return {
    workloads: mesh.workloads.filter((w) => matches([w.id, w.kind, w.serviceAccount, ...w.classes, ...w.pods.map((p) => p.name)].join(' '))),
    services: mesh.services.filter((s) => matches([s.id, 'service', ...s.ports.map((p) => p.protocol + ' ' + p.port)].join(' '))),
  }
}

interface Props {
  mesh: Mesh
  hits: Hits
  selected: string
  onSelect: (id: string) => void
  onOpen: (id: string) => void
}

export function Sidebar({ hits, selected, onSelect, onOpen }: Props) {
  return (
    <aside>
      <h2>Workloads <small>{hits.workloads.length}</small></h2>
      <ul>
        {hits.workloads.map((w) => (
          <li key={w.id}>
            <button aria-pressed={selected === workloadNode(w.id)} onClick={() => onSelect(workloadNode(w.id))} onDblClick={() => onOpen(workloadNode(w.id))}>
              <span class={'dot ' + (isHealthy(w) ? 'good' : 'bad')} aria-label={isHealthy(w) ? 'healthy' : 'not healthy'} role="img" />
              <span class="name">{w.name}<small>{w.namespace}</small></span>
              {w.classes.map((c) => <span key={c} class={'class ' + c}>{c}</span>)}
            </button>
            <a href={'#/workload/' + w.id} title={'Page of ' + w.id} aria-label={'Page of ' + w.id}>→</a>
          </li>
        ))}
      </ul>
      <h2>Services <small>{hits.services.length}</small></h2>
      <ul>
        {hits.services.map((s) => (
          <li key={s.id}>
            <button aria-pressed={selected === serviceNode(s.id)} onClick={() => onSelect(serviceNode(s.id))}>
              <span class="name">{s.name}<small>{s.namespace}</small></span>
            </button>
          </li>
        ))}
      </ul>
      {hits.workloads.length + hits.services.length === 0 && <p class="empty">Nothing has these words.</p>}
    </aside>
  )
}
