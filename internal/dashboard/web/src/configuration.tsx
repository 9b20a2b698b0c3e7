// The configuration of a proxy, and how it differs from another.

import { diffLines } from 'diff'
import { useEffect, useMemo, useState } from 'preact/hooks'
import { type PodPage, type Workload, getPod } from './api'

type Files = Record<string, string>

const view = 'View'

// The View is what the driver translates, so it is shown as a file too.
function filesOf(page: PodPage): Files {
  return { [view]: JSON.stringify(page.view, null, 2), ...page.configuration }
}

interface Props {
  page: PodPage
  workload: Workload
  pod: string
}

export function Configuration({ page, workload, pod }: Props) {
  const files = filesOf(page)
  const names = Object.keys(files)
  const [chosen, setChosen] = useState('')
  const [against, setAgainst] = useState('')
  const [opened] = useState<{ pod: string; files: Files }[]>([])
  // What each pod had when it was shown first.
  if (!opened.some((o) => o.pod === pod)) opened.push({ pod, files })
  const other = useOther(against, opened.find((o) => o.pod === pod)?.files, workload.namespace)
  const name = names.includes(chosen) ? chosen : (names[1] ?? view)
  const others = workload.pods.filter((p) => p.name !== pod && p.class)
  return (
    <>
      <div class="tools">
        <label>File <select value={name} onChange={(event) => setChosen(event.currentTarget.value)}>{names.map((n) => <option key={n}>{n}</option>)}</select></label>
        <label>Compare with{' '}
          <select value={against} onChange={(event) => setAgainst(event.currentTarget.value)}>
            <option value="">nothing</option>
            <option value="@opened">this page when it was opened</option>
            {others.map((p) => <option key={p.name} value={p.name}>{p.name}</option>)}
          </select>
        </label>
        {page.note && <span class="soft">{page.note}</span>}
      </div>
      {other.error && <p class="banner bad">{other.error}</p>}
      {against && other.files ? <Difference before={other.files[name] ?? ''} after={files[name] ?? ''} /> : <pre class="file">{files[name]}</pre>}
    </>
  )
}

function useOther(against: string, opened: Files | undefined, namespace: string): { files?: Files; error?: string } {
  const [state, setState] = useState<{ of: string; files?: Files; error?: string }>({ of: '' })
  useEffect(() => {
    if (!against || against === '@opened') return
    let ended = false
    getPod(namespace + '/' + against).then(
      (page) => !ended && setState({ of: against, files: filesOf(page) }),
      (error: Error) => !ended && setState({ of: against, error: error.message }),
    )
    return () => void (ended = true)
  }, [against, namespace])
  if (against === '@opened') return { files: opened }
  return state.of === against ? state : {}
}

// Lines of context around a change.
const context = 3

function Difference({ before, after }: { before: string; after: string }) {
  const parts = useMemo(() => diffLines(before, after, { timeout: 3000 }), [before, after])
  if (!parts) return <p class="empty">The files differ too much to compare.</p>
  if (parts.every((p) => !p.added && !p.removed)) return <p class="empty">There is no difference.</p>
  return (
    <pre class="file">
      {parts.map((part, i) => {
        const lines = part.value.replace(/\n$/, '').split('\n')
        if (part.added) return <ins key={i}>{lines.map((l) => '+ ' + l + '\n')}</ins>
        if (part.removed) return <del key={i}>{lines.map((l) => '- ' + l + '\n')}</del>
        return <span key={i}>{shorten(lines, i > 0, i < parts.length - 1).map((l) => '  ' + l + '\n')}</span>
      })}
    </pre>
  )
}

// shorten keeps the lines next to changes.
function shorten(lines: string[], head: boolean, tail: boolean): string[] {
  const keep = (head ? context : 0) + (tail ? context : 0)
  if (lines.length <= keep + 1) return lines
  return [...(head ? lines.slice(0, context) : []), `⋯ ${lines.length - keep} equal lines`, ...(tail ? lines.slice(-context) : [])]
}
