import { useEffect, useRef } from 'preact/hooks'

const keys: [string, string][] = [
  ['/', 'search; Enter goes to the first result'],
  ['1 2 3 4', 'graph, calls, splits, problems'],
  ['Tab, Enter', 'choose a workload or service; Enter again opens a workload’s page'],
  ['Esc', 'back'],
  ['f', 'show the whole graph'],
  ['+ −', 'zoom'],
  ['← → ↑ ↓', 'move the graph'],
  ['t', 'dark or light'],
  ['?', 'this list'],
]

export function Help({ onClose }: { onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null)
  useEffect(() => dialog.current?.showModal(), [])
  return (
    <dialog ref={dialog} onClose={onClose} aria-label="Keys">
      <h3>Keys</h3>
      <dl class="keys">{keys.map(([key, text]) => <><dt><kbd>{key}</kbd></dt><dd>{text}</dd></>)}</dl>
      <button onClick={onClose}>Close</button>
    </dialog>
  )
}
