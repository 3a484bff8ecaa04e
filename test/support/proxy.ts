/** A TCP proxy that can be told to misbehave, as networks between a client and its database do. */
import { type AddressInfo, connect, createServer, type Socket } from "node:net"

export interface Proxy {
  readonly port: number
  /** The same database through the proxy. */
  readonly url: string
  /** Connections that are open now. */
  readonly open: () => number
  /** Connections that were ever accepted, refused ones included. */
  readonly accepted: () => number
  /** Lets everything through again; what is held is cut. */
  readonly pass: () => void
  /** Swallows both directions of all connections, open and new, and leaves them open: a half-open network. */
  readonly hold: () => void
  /** The same for the connections that are open now, or those of them that `which` picks; new ones pass. */
  readonly holdOld: (which?: (sent: string) => boolean) => void
  /** Resets every open connection. */
  readonly cut: () => void
  /** Resets every new connection at once. */
  readonly refuse: () => void
  /**
   * Forwards the next message that contains `text`, swallows the answer and resets the connection. Resolves when it has.
   */
  readonly swallowReply: (text: string) => Promise<void>
  readonly close: () => Promise<void>
}

interface Pair {
  readonly client: Socket
  readonly server: Socket
  held: boolean
  /** Called with the first answer, which it keeps. */
  swallow: (() => void) | undefined
  /** What the client has sent so far, up to a limit. */
  sent: string
}

/** Enough of what was sent to tell connections apart by their start-up message and first statements. */
const remembered = 4_096

export const startProxy = async (target: string): Promise<Proxy> => {
  const to = new URL(target)
  const pairs = new Set<Pair>()
  let mode: "pass" | "hold" | "refuse" = "pass"
  let accepted = 0
  let trap: { readonly text: string; readonly sprung: () => void } | undefined

  const end = (pair: Pair) => {
    pairs.delete(pair)
    pair.client.resetAndDestroy()
    pair.server.destroy()
  }

  const listener = createServer((client) => {
    accepted++
    client.on("error", () => {})
    if (mode === "refuse") return void client.resetAndDestroy()
    const server = connect(Number(to.port), to.hostname)
    const pair: Pair = { client, server, held: mode === "hold", swallow: undefined, sent: "" }
    pairs.add(pair)
    client.on("data", (data) => {
      if (pair.held) return
      if (pair.sent.length < remembered) pair.sent += data.toString("latin1")
      if (trap !== undefined && data.includes(trap.text)) {
        pair.swallow = trap.sprung
        trap = undefined
      }
      server.write(data)
    })
    server.on("data", (data) => {
      if (pair.held) return
      if (pair.swallow === undefined) return void client.write(data)
      const sprung = pair.swallow
      end(pair)
      sprung()
    })
    const closed = () => {
      if (!pair.held) end(pair)
    }
    for (const socket of [client, server]) socket.on("error", closed).on("close", closed)
  })
  await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve))
  const { port } = listener.address() as AddressInfo

  return {
    port,
    url: Object.assign(new URL(target), { port: String(port) }).href,
    open: () => pairs.size,
    accepted: () => accepted,
    pass: () => {
      mode = "pass"
      for (const pair of pairs) if (pair.held) end(pair)
    },
    hold: () => {
      mode = "hold"
      for (const pair of pairs) pair.held = true
    },
    holdOld: (which = () => true) => {
      for (const pair of pairs) if (which(pair.sent)) pair.held = true
    },
    cut: () => {
      for (const pair of pairs) end(pair)
    },
    refuse: () => {
      mode = "refuse"
    },
    swallowReply: (text) =>
      new Promise((resolve) => {
        trap = { text, sprung: resolve }
      }),
    close: () =>
      new Promise((resolve) => {
        for (const pair of pairs) end(pair)
        listener.close(() => resolve())
      })
  }
}
