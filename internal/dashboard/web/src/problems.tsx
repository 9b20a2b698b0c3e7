// Problems of the users' objects.

import { type Problem, refText } from './api'

export function Problems({ list, query = '' }: { list: Problem[]; query?: string }) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean)
  const shown = list.filter((p) => words.every((word) => (refText(p.object) + p.reason + p.message).toLowerCase().includes(word)))
  if (shown.length === 0) return <p class="empty">No problems{query && ' with these words'}.</p>
  return (
    <div class="scroll">
      <table>
        <thead><tr><th>Object</th><th>Reason</th><th>Field</th><th>Message</th></tr></thead>
        <tbody>
          {shown.map((p, i) => (
            <tr key={i} class={p.reason === 'Advice' ? '' : 'refused'}>
              <td>{refText(p.object)}</td><td>{p.reason}</td><td><code>{p.field}</code></td><td>{p.message}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  )
}
