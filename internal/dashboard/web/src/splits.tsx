// Splits: what the policies want, what is measured, and how both moved.

import type { Mesh, Split } from './api'
import * as format from './format'
import { interval } from './state'

const idOf = (name: { namespace: string; name: string }) => name.namespace + '/' + name.name

// measured returns the share of each part in the rate of all parts, or undefined without
// traffic.
export function measured(split: Split, mesh: Mesh): number[] | undefined {
  const rates = split.shares.map((s) => mesh.edges.filter((e) => e.service === idOf(s.service)).reduce((sum, e) => sum + e.rate, 0))
  const total = rates.reduce((a, b) => a + b, 0)
  return total > 0 ? rates.map((r) => r / total) : undefined
}

export function Splits({ mesh, history }: { mesh: Mesh; history: Mesh[] }) {
  if (mesh.splits.length === 0) return <p class="empty">No route divides its traffic.</p>
  return <div class="scroll">{mesh.splits.map((split) => <SplitCard key={idOf(split.service) + split.service.port + split.route} split={split} mesh={mesh} history={history} />)}</div>
}

function SplitCard({ split, mesh, history }: { split: Split; mesh: Mesh; history: Mesh[] }) {
  const total = split.shares.reduce((sum, s) => sum + s.weight, 0)
  const wanted = split.shares.map((s) => (total ? s.weight / total : 0))
  const now = measured(split, mesh)
  return (
    <section class="card splitcard">
      <h3>{idOf(split.service)}:{split.service.port} <small>{split.route && 'by ' + split.route}</small></h3>
      <Bar title="Policy" parts={wanted} split={split} />
      {mesh.measured && <Bar title="Measured" parts={now} split={split} />}
      <History split={split} history={history} />
    </section>
  )
}

function Bar({ title, parts, split }: { title: string; parts?: number[]; split: Split }) {
  return (
    <div class="bar">
      <span class="title">{title}</span>
      <div class="parts">
        {parts?.map((part, i) => (
          <span key={i} class={'part part' + (i % 4)} style={{ width: part * 100 + '%' }} title={split.shares[i]!.service.name + ' ' + format.share(part)}>
            {part > 0.08 && `${split.shares[i]!.service.name} ${format.share(part)}`}
          </span>
        )) ?? <span class="soft">no requests</span>}
      </div>
    </div>
  )
}

// History draws the measured share of the first part as a line, and its weight as steps.
function History({ split, history }: { split: Split; history: Mesh[] }) {
  const width = 600
  const height = 90
  const key = (s: Split) => idOf(s.service) + ':' + s.service.port + s.route
  const step = width / Math.max(30, history.length - 1)
  const points = (share: (m: Mesh) => number | undefined) =>
    history.map((m, i) => [i * step, share(m)] as const).filter(([, y]) => y !== undefined).map(([x, y]) => `${x.toFixed(1)},${(height - y! * height).toFixed(1)}`).join(' ')
  const weight = (m: Mesh) => {
    const then = m.splits.find((s) => key(s) === key(split))
    const total = then?.shares.reduce((sum, s) => sum + s.weight, 0)
    return then && total ? then.shares[0]!.weight / total : undefined
  }
  const real = (m: Mesh) => {
    const then = m.splits.find((s) => key(s) === key(split))
    return then && measured(then, m)?.[0]
  }
  return (
    <figure>
      <svg viewBox={`-2 -4 ${width + 4} ${height + 8}`} preserveAspectRatio="none" role="img" aria-label={'Share of ' + split.shares[0]!.service.name}>
        <line x1="0" y1="0" x2={width} y2="0" /><line x1="0" y1={height / 2} x2={width} y2={height / 2} /><line x1="0" y1={height} x2={width} y2={height} />
        <polyline class="weight" points={points(weight)} />
        <polyline class="measured" points={points(real)} />
      </svg>
      <figcaption>share of {split.shares[0]!.service.name} in the last {Math.round((Math.max(30, history.length) * interval) / 1000)} seconds: <span class="weight">policy</span>, <span class="measured">measured</span></figcaption>
    </figure>
  )
}
