// What the page shows, and where it comes from.

import { useCallback, useEffect, useRef, useState } from 'preact/hooks'
import { type Mesh, getMesh } from './api'

// How often the mesh is read, in milliseconds.
export const interval = 2000

// How many readings the history of the splits has.
const kept = 90

export interface Live {
  mesh?: Mesh
  error?: string
  // Readings of the traffic, the oldest first.
  history: Mesh[]
}

// useMesh reads the mesh again and again while the page is visible.
export function useMesh(): Live {
  const [live, setLive] = useState<Live>({ history: [] })
  useEffect(() => {
    let timer = 0
    let ended = false
    const read = async () => {
      try {
        const mesh = await getMesh()
        if (!ended) setLive((old) => ({ mesh, history: [...old.history.slice(1 - kept), mesh] }))
      } catch (error) {
        if (!ended) setLive((old) => ({ ...old, error: (error as Error).message }))
      }
      if (!ended && !document.hidden) timer = window.setTimeout(read, interval)
    }
    const visible = () => {
      window.clearTimeout(timer)
      if (!document.hidden) void read()
    }
    document.addEventListener('visibilitychange', visible)
    void read()
    return () => {
      ended = true
      window.clearTimeout(timer)
      document.removeEventListener('visibilitychange', visible)
    }
  }, [])
  return live
}

// The place within the page is the part of the address after #, so that it can be bookmarked.
export function usePlace(): [string[], (...place: string[]) => void] {
  const parse = () => location.hash.replace(/^#\/?/, '').split('/').filter(Boolean).map(decodeURIComponent)
  const [place, setPlace] = useState(parse)
  useEffect(() => {
    const changed = () => setPlace(parse())
    window.addEventListener('hashchange', changed)
    return () => window.removeEventListener('hashchange', changed)
  }, [])
  const go = useCallback((...to: string[]) => void (location.hash = '#/' + to.map(encodeURIComponent).join('/')), [])
  return [place, go]
}

export type Theme = 'light' | 'dark'

// useTheme begins with the system's theme, and remembers another choice.
export function useTheme(): [Theme, () => void] {
  const [theme, setTheme] = useState<Theme>(() => {
    const chosen = localStorage.getItem('theme')
    if (chosen === 'light' || chosen === 'dark') return chosen
    return matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'
  })
  // The graph reads colours from the document, so they must be there before it is drawn.
  document.documentElement.dataset.theme = theme
  const toggle = useCallback(() => {
    setTheme((old) => {
      const now = old === 'dark' ? 'light' : 'dark'
      localStorage.setItem('theme', now)
      return now
    })
  }, [])
  return [theme, toggle]
}

export type Keys = Record<string, () => void>

// useKeys calls the function of a key, unless the user writes text.
export function useKeys(keys: Keys) {
  const current = useRef(keys)
  current.current = keys
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      const writes = (event.target as HTMLElement).closest('input, textarea, select')
      if (event.ctrlKey || event.metaKey || event.altKey || (writes && event.key !== 'Escape')) return
      const action = current.current[event.key]
      if (action) {
        event.preventDefault()
        action()
      }
    }
    window.addEventListener('keydown', pressed)
    return () => window.removeEventListener('keydown', pressed)
  }, [])
}
