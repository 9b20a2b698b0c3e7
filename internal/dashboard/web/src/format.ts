// Numbers and times for people.

export function rate(perSecond: number): string {
  if (perSecond === 0) return '0/s'
  if (perSecond < 0.1) return '<0.1/s'
  if (perSecond < 10) return perSecond.toFixed(1) + '/s'
  if (perSecond < 10_000) return Math.round(perSecond) + '/s'
  return (perSecond / 1000).toFixed(1) + 'k/s'
}

export function latency(milliseconds: number): string {
  if (milliseconds === 0) return '–'
  if (milliseconds < 1) return milliseconds.toFixed(2) + ' ms'
  if (milliseconds < 10) return milliseconds.toFixed(1) + ' ms'
  if (milliseconds < 10_000) return Math.round(milliseconds) + ' ms'
  return (milliseconds / 1000).toFixed(1) + ' s'
}

// 99.97 % must not look like 100 %.
export function share(part: number): string {
  const percent = part * 100
  if (percent === 100 || percent === 0) return percent + ' %'
  return (percent > 99 ? Math.floor(percent * 100) / 100 : Math.round(percent * 10) / 10) + ' %'
}

export function ago(time: string | undefined, now = Date.now()): string {
  const at = time ? Date.parse(time) : NaN
  if (Number.isNaN(at) || at <= 0) return '–'
  return span(now - at) + ' ago'
}

export function until(time: string, now = Date.now()): string {
  const left = Date.parse(time) - now
  return left < 0 ? 'expired ' + span(-left) + ' ago' : 'in ' + span(left)
}

function span(milliseconds: number): string {
  const seconds = Math.max(0, Math.round(milliseconds / 1000))
  if (seconds < 120) return seconds + ' s'
  if (seconds < 7200) return Math.round(seconds / 60) + ' min'
  if (seconds < 172_800) return Math.round(seconds / 3600) + ' h'
  return Math.round(seconds / 86_400) + ' days'
}

export function bytes(n: number): string {
  if (n < 1024) return n + ' B'
  if (n < 1024 * 1024) return Math.round(n / 1024) + ' KiB'
  return (n / 1024 / 1024).toFixed(1) + ' MiB'
}
