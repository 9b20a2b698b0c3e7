// The page: a header, the list of workloads and services, and one of several views.

import { useMemo, useRef, useState } from 'preact/hooks'
import type { Mesh } from './api'
import { Calls } from './calls'
import { Details } from './details'
import { elementsOf, serviceNode, workloadNode } from './elements'
import { Graph, type Controls } from './graph'
import { Help } from './help'
import { Problems } from './problems'
import { Sidebar, search } from './sidebar'
import { Splits } from './splits'
import { useKeys, useMesh, usePlace, useTheme } from './state'
import { WorkloadPage } from './workload'

const views = ['graph', 'calls', 'splits', 'problems'] as const

export function App() {
  const live = useMesh()
  const [place, go] = usePlace()
  const [theme, toggleTheme] = useTheme()
  const [query, setQuery] = useState('')
  const [selected, setSelected] = useState('')
  const [help, setHelp] = useState(false)
  const input = useRef<HTMLInputElement>(null)
  const controls = useRef<Controls>(undefined)
  const view = place[0] ?? 'graph'
  const { mesh } = live

  const elements = useMemo(() => mesh && elementsOf(mesh), [mesh])
  const hits = useMemo(() => mesh && search(mesh, query), [mesh, query])
  const found = useMemo(() => (query && hits ? new Set([...hits.workloads.map((w) => workloadNode(w.id)), ...hits.services.map((s) => serviceNode(s.id))]) : undefined), [hits, query])

  // A node of the graph, or a workload's own page.
  const open = (id: string) => {
    if (id.startsWith('w:')) go('workload', ...id.slice(2).split('/'))
    else choose(id)
  }
  const choose = (id: string) => {
    setSelected(id)
    if (view === 'workload') go('graph')
  }
  const escape = () => {
    if (help) setHelp(false)
    else if (document.activeElement === input.current) {
      setQuery('')
      input.current?.blur()
    } else if (selected && view === 'graph') setSelected('')
    else go('graph')
  }
  useKeys({
    '/': () => input.current?.focus(),
    Escape: escape,
    '?': () => setHelp(!help),
    t: toggleTheme,
    f: () => controls.current?.fit(),
    '+': () => controls.current?.zoom(1.25),
    '-': () => controls.current?.zoom(0.8),
    ...(view === 'graph' && {
      ArrowLeft: () => controls.current?.pan(60, 0), ArrowRight: () => controls.current?.pan(-60, 0),
      ArrowUp: () => controls.current?.pan(0, 60), ArrowDown: () => controls.current?.pan(0, -60),
    }),
    Enter: () => selected && open(selected),
    ...Object.fromEntries(views.map((name, i) => [String(i + 1), () => go(name)])),
  })
  const enter = () => {
    const first = hits?.workloads[0] ? workloadNode(hits.workloads[0].id) : hits?.services[0] && serviceNode(hits.services[0].id)
    if (first) choose(first)
  }

  return (
    <div class="page">
      <header>
        <a class="brand" href="#/">Outrigger</a>
        <nav aria-label="Views">
          {views.map((name, i) => (
            <a key={name} href={'#/' + name} aria-current={view === name ? 'page' : undefined} title={`Key ${i + 1}`}>
              {name[0]!.toUpperCase() + name.slice(1)}
              {name === 'problems' && mesh && mesh.problems.length > 0 && <span class="count">{mesh.problems.length}</span>}
              {name === 'splits' && mesh && mesh.splits.length > 0 && <span class="count plain">{mesh.splits.length}</span>}
            </a>
          ))}
        </nav>
        <input
          ref={input} type="search" placeholder="Search  /" aria-label="Search workloads and services" value={query}
          onInput={(event) => setQuery(event.currentTarget.value)} onKeyDown={(event) => event.key === 'Enter' && enter()}
        />
        <span class="state" role="status">{status(mesh, live.error)}</span>
        <button onClick={toggleTheme} title="Dark or light (t)">{theme === 'dark' ? 'Light' : 'Dark'}</button>
        <button onClick={() => setHelp(true)} title="Keys (?)">?</button>
      </header>
      {live.error && <p class="banner bad" role="alert">{live.error}</p>}
      {mesh && mesh.warnings.length > 0 && <p class="banner warn">{mesh.warnings.join(' · ')}</p>}
      <div class="body">
        {mesh && hits && <Sidebar mesh={mesh} hits={hits} selected={view === 'workload' ? 'w:' + place.slice(1, 3).join('/') : selected} onSelect={choose} onOpen={open} />}
        <main>
          {!mesh && !live.error && <p class="empty">Reading the mesh …</p>}
          {/* The graph stays, so that its positions do. */}
          {elements && (
            <div class={view === 'graph' ? 'canvas' : 'canvas hidden'}>
              <Graph elements={elements} selected={selected} found={found} theme={theme} onSelect={setSelected} onOpen={open} register={(c) => (controls.current = c)} />
              <Legend measured={mesh!.measured} />
              {selected && <Details mesh={mesh!} id={selected} onClose={() => setSelected('')} onSelect={choose} />}
            </div>
          )}
          {mesh && view === 'calls' && <Calls mesh={mesh} query={query} onSelect={(id) => { setSelected(id); go('graph') }} />}
          {mesh && view === 'splits' && <Splits mesh={mesh} history={live.history} />}
          {mesh && view === 'problems' && <Problems list={mesh.problems} query={query} />}
          {mesh && view === 'workload' && <WorkloadPage key={place.slice(1, 3).join('/')} mesh={mesh} id={place.slice(1, 3).join('/')} />}
        </main>
      </div>
      {help && <Help onClose={() => setHelp(false)} />}
    </div>
  )
}

function status(mesh: Mesh | undefined, error: string | undefined): string {
  if (error) return 'Not updated'
  if (!mesh) return ''
  const pods = mesh.workloads.reduce((sum, w) => sum + w.pods.length, 0)
  return `${mesh.services.length} services · ${pods} pods`
}

function Legend(props: { measured: boolean }) {
  return (
    <ul class="legend" aria-label="Legend">
      <li class="call">calls</li>
      <li class="refused">refused</li>
      <li class="split">split</li>
      <li class="member">service and its pods</li>
      {!props.measured && <li class="none">traffic is not measured</li>}
    </ul>
  )
}
