// The answers of the server. model.go of the Go package describes the fields.

export interface Name {
  namespace: string
  name: string
}

export interface ObjectRef {
  apiVersion: string
  kind: string
  namespace?: string
  name: string
}

export interface Problem {
  object: ObjectRef
  reason: string
  field?: string
  message: string
}

export interface Pod {
  name: string
  class?: string
  ready: boolean
  state?: string
}

export interface Workload {
  id: string
  namespace: string
  name: string
  kind: string
  serviceAccount: string
  classes: string[]
  pods: Pod[]
}

export interface Service {
  id: string
  namespace: string
  name: string
  ports: { name?: string; port: number; protocol: string }[]
  workloads: string[]
}

export interface Split {
  service: Name & { port: number }
  route: string
  shares: { service: Name; weight: number }[]
}

export interface Edge {
  client?: string
  service?: string
  server?: string
  protocol: string
  rate: number
  success: number
  p50: number
  p95: number
  p99: number
  tls?: string
  refused?: number
  reason?: string
  rule?: string[]
}

export interface Mesh {
  time: string
  workloads: Workload[]
  services: Service[]
  splits: Split[]
  edges: Edge[]
  problems: Problem[]
  measured: boolean
  warnings: string[]
}

export interface Version {
  version: string
  time: string
}

export interface Proxy {
  uid: string
  identity: string
  certificateEnds: string
  class: string
  version?: string
  address: string
  connected: string
  state: string
  sent?: Version
  acked?: Version
  resources: number
  bytes: number
  failure?: Record<string, unknown>
  rejections?: { time: string; version: string; message: string; resources?: string[]; objects?: ObjectRef[] }[]
}

export interface PodPage {
  controller: string
  proxy?: Proxy
  view: unknown
  configuration?: Record<string, string>
  note?: string
  policies: ObjectRef[]
  problems: Problem[]
}

// The server's own message is what explains a failure.
async function get<T>(path: string): Promise<T> {
  let answer: Response
  try {
    answer = await fetch(path, { cache: 'no-store', credentials: 'same-origin' })
  } catch {
    throw new Error('The dashboard’s server does not answer. Has the command ended?')
  }
  if (!answer.ok) {
    throw new Error((await answer.text()).trim() || answer.statusText)
  }
  return (await answer.json()) as T
}

export const getMesh = () => get<Mesh>('api/mesh')

export const getPod = (pod: string) => get<PodPage>('api/pod?pod=' + encodeURIComponent(pod))

export const refText = (o: ObjectRef) => o.kind + ' ' + (o.namespace ? o.namespace + '/' : '') + o.name
