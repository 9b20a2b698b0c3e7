// The page of one workload.

import { useEffect, useState } from 'preact/hooks'
import { type Mesh, type PodPage, type Workload, getPod, refText } from './api'
import { EdgeTable } from './calls'
import { Configuration } from './configuration'
import * as format from './format'
import { Problems } from './problems'
import { interval } from './state'

const tabs = ['Overview', 'Policies', 'Proxy', 'Configuration', 'Certificate'] as const

export function WorkloadPage({ mesh, id }: { mesh: Mesh; id: string }) {
  const w = mesh.workloads.find((w) => w.id === id)
  const [pod, setPod] = useState('')
  const [tab, setTab] = useState<(typeof tabs)[number]>('Overview')
  const chosen = w?.pods.find((p) => p.name === pod) ?? w?.pods.find((p) => p.state) ?? w?.pods[0]
  const { page, error } = usePod(w && chosen?.class ? w.namespace + '/' + chosen.name : '')
  if (!w) return <p class="empty">There is no workload {id} in the mesh.</p>
  return (
    <div class="scroll workload">
      <h1>{w.name} <small>{w.kind} in {w.namespace}</small></h1>
      <div class="tabs" role="tablist">
        {tabs.map((name) => <button key={name} role="tab" aria-selected={tab === name} onClick={() => setTab(name)}>{name}</button>)}
        <label>Pod <select value={chosen?.name} onChange={(event) => setPod(event.currentTarget.value)}>{w.pods.map((p) => <option key={p.name}>{p.name}</option>)}</select></label>
      </div>
      {tab === 'Overview' && <Overview mesh={mesh} workload={w} page={page} />}
      {tab !== 'Overview' && !chosen?.class && <p class="empty">This pod has no sidecar.</p>}
      {tab !== 'Overview' && error && <p class="banner bad">{error}</p>}
      {tab === 'Policies' && page && <Policies page={page} />}
      {tab === 'Proxy' && page && <ProxyState page={page} />}
      {tab === 'Configuration' && page && chosen && <Configuration page={page} workload={w} pod={chosen.name} />}
      {tab === 'Certificate' && page && <Certificate page={page} />}
    </div>
  )
}

// usePod reads the page of a pod again and again.
function usePod(pod: string): { page?: PodPage; error?: string } {
  const [state, setState] = useState<{ pod: string; page?: PodPage; error?: string }>({ pod: '' })
  useEffect(() => {
    if (!pod) return
    let timer = 0
    let ended = false
    const read = async () => {
      try {
        const page = await getPod(pod)
        if (!ended) setState({ pod, page })
      } catch (error) {
        if (!ended) setState((old) => ({ pod, page: old.pod === pod ? old.page : undefined, error: (error as Error).message }))
      }
      if (!ended) timer = window.setTimeout(read, 2 * interval)
    }
    void read()
    return () => {
      ended = true
      window.clearTimeout(timer)
    }
  }, [pod])
  return state.pod === pod ? state : {}
}

function Overview({ mesh, workload: w, page }: { mesh: Mesh; workload: Workload; page?: PodPage }) {
  const edges = mesh.edges.filter((e) => e.client === w.id || e.server === w.id)
  return (
    <>
      <dl>
        <dt>Service account</dt><dd>{w.serviceAccount}</dd>
        <dt>Identity</dt><dd>{page?.proxy?.identity ?? '–'}</dd>
        <dt>Services</dt><dd>{mesh.services.filter((s) => s.workloads.includes(w.id)).map((s) => s.id).join(', ') || 'none'}</dd>
      </dl>
      <h2>Pods</h2>
      <table>
        <thead><tr><th>Name</th><th>Class</th><th>Ready</th><th>Proxy</th></tr></thead>
        <tbody>{w.pods.map((p) => <tr key={p.name}><td>{p.name}</td><td>{p.class || 'no sidecar'}</td><td>{p.ready ? 'yes' : 'not reported'}</td><td>{p.state ?? (p.class ? 'not connected' : '–')}</td></tr>)}</tbody>
      </table>
      {mesh.measured && <><h2>Traffic</h2>{edges.length ? <EdgeTable edges={edges} /> : <p class="soft">none</p>}</>}
      {page && page.problems.length > 0 && <><h2>Problems</h2><Problems list={page.problems} /></>}
    </>
  )
}

function Policies({ page }: { page: PodPage }) {
  return (
    <>
      <h2>Policies that decide about its requests</h2>
      {page.policies.length ? <ul class="refs">{page.policies.map((p) => <li key={refText(p)}>{refText(p)}</li>)}</ul> : <p class="soft">none</p>}
      <h2>Problems</h2>
      <Problems list={page.problems} />
    </>
  )
}

function ProxyState({ page: { proxy: p, controller } }: { page: PodPage }) {
  if (!p) return <p class="empty">The proxy is not connected to a controller.</p>
  return (
    <>
      <dl>
        <dt>State</dt><dd><b class={p.state === 'Current' ? 'good' : 'bad'}>{p.state}</b></dd>
        <dt>Class</dt><dd>{p.class} {p.version}</dd>
        <dt>Connected</dt><dd>{format.ago(p.connected)}, from {p.address} to {controller}</dd>
        <dt>Sent</dt><dd><code>{p.sent?.version ?? '–'}</code> {format.ago(p.sent?.time)}</dd>
        <dt>Runs</dt><dd><code>{p.acked?.version ?? '–'}</code> {format.ago(p.acked?.time)}</dd>
        <dt>Received</dt><dd>{p.resources} resources, {format.bytes(p.bytes)}</dd>
      </dl>
      {p.failure && <><h2>It keeps crashing</h2><pre>{JSON.stringify(p.failure, null, 2)}</pre></>}
      {p.rejections && p.rejections.length > 0 && (
        <>
          <h2>It rejects</h2>
          <ul class="rule">{p.rejections.map((r, i) => <li key={i}>{(r.resources ?? []).join(', ')}: {r.message} <span class="soft">{format.ago(r.time)}{r.objects?.length ? ', because of ' + r.objects.map(refText).join(', ') : ''}</span></li>)}</ul>
        </>
      )}
    </>
  )
}

function Certificate({ page: { proxy: p } }: { page: PodPage }) {
  if (!p) return <p class="empty">The proxy is not connected to a controller.</p>
  return (
    <dl>
      <dt>Identity</dt><dd><code>{p.identity}</code></dd>
      <dt>Expires</dt><dd>{format.until(p.certificateEnds)} <span class="soft">{new Date(p.certificateEnds).toLocaleString()}</span></dd>
      <dt>Key</dt><dd>generated in the pod, and only there. The agent renews the certificate after two thirds of its life.</dd>
    </dl>
  )
}
