/**
 * PostgreSQL: a proxy that reads the protocol, counts statements and lets the n-th fail as real ones do. What is lost is
 * lost with its connection and its backend; what is refused is refused by the server itself, so that the driver and the
 * transaction are in the state they would be in.
 */
import { once } from "node:events"
import { type AddressInfo, connect, createServer, type Socket } from "node:net"
import { type Faults, isCommit, isUndoing, type Kind, makeCounter } from "./faults.js"

/** `code`: what the server answers; none: nothing. */
interface PgKind extends Kind {
  readonly code?: string
}

const lost = (name: string, took: boolean): PgKind => ({ name, took, silent: true, applies: () => true })

const refused = (name: string, code: string): PgKind => ({
  name,
  took: false,
  silent: false,
  code,
  applies: (text) => !isUndoing(text)
})

const kinds: ReadonlyArray<PgKind> = [
  lost("connection lost before", false),
  lost("answer lost", true),
  refused("serialization failure", "40001"),
  refused("backend terminated", "57P01"),
  refused("deadlock", "40P01"),
  refused("statement timeout", "57014"),
  refused("disk full", "53100")
]

/** Whole messages; the first of a client has no type. */
const framing = (startup: boolean) => {
  let rest: Buffer = Buffer.alloc(0)
  let head = startup ? 0 : 1
  return (chunk: Buffer): ReadonlyArray<Buffer> => {
    rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk])
    const frames: Array<Buffer> = []
    while (rest.length >= head + 4) {
      const size = head + rest.readInt32BE(head)
      if (rest.length < size) break
      frames.push(rest.subarray(0, size))
      rest = rest.subarray(size)
      head = 1
    }
    return frames
  }
}

const stringAt = (frame: Buffer, from: number): string => frame.toString("utf8", from, frame.indexOf(0, from))

const simpleQuery = (text: string): Buffer => {
  const body = Buffer.from(`${text}\0`)
  const head = Buffer.alloc(5)
  head.write("Q")
  head.writeInt32BE(body.length + 4, 1)
  return Buffer.concat([head, body])
}

/** Makes the server itself answer with the error; a COMMIT that fails has rolled back. */
const failing = (code: string, text: string): Buffer => {
  if (code === "57P01") return simpleQuery("SELECT pg_terminate_backend(pg_backend_pid())")
  const raise = `DO $$BEGIN RAISE EXCEPTION 'a fault of the test' USING ERRCODE = '${code}'; END$$`
  return simpleQuery(isCommit(text) ? `ROLLBACK; ${raise}` : raise)
}

type Counter = ReturnType<typeof makeCounter>

/** One connection. `heard`: whether its statements count. */
const serve = (client: Socket, server: Socket, counter: Counter, heard: (startup: string) => boolean) => {
  const texts = new Map<string, string>()
  let counts = true
  let unit: Array<Buffer> = []
  let text: string | undefined
  /** What becomes of the answer that is awaited: at its end, before it is passed on. */
  let atEnd: (() => Promise<void>) | undefined
  let swallow = false

  /** The backend first: when the client learns of it, its transaction is rolled back and its locks are free. */
  const cut = async () => {
    const closed = once(server, "close")
    server.end()
    await closed
    client.destroy()
  }

  const send = (statement: Buffer, name: string) => {
    const fault: PgKind | undefined = counter.next(name)
    if (fault === undefined) {
      if (counter.watched()) atEnd = async () => void (await counter.seen(name))
      server.write(statement)
    } else if (fault.code !== undefined) server.write(failing(fault.code, name))
    else if (fault.took) {
      swallow = true
      atEnd = cut
      server.write(statement)
    } else void cut()
  }

  const fromClient = framing(true)
  let started = false
  client.on("data", (chunk) => {
    for (const frame of fromClient(chunk)) {
      const type = started ? String.fromCharCode(frame[0] ?? 0) : ""
      if (!started) counts = heard(frame.toString("latin1"))
      started = true
      if (type === "P") {
        const name = stringAt(frame, 5)
        text = stringAt(frame, 6 + Buffer.byteLength(name))
        texts.set(name, text)
      } else if (type === "B") text = texts.get(stringAt(frame, 6 + Buffer.byteLength(stringAt(frame, 5)))) ?? text
      else if (type === "Q") text = stringAt(frame, 5)
      unit.push(frame)
      if (type === "Q" || type === "S" || type === "X" || type === "p" || type === "") {
        const all = Buffer.concat(unit)
        if (counts && text !== undefined && (type === "Q" || type === "S")) send(all, text)
        else server.write(all)
        unit = []
        text = undefined
      }
    }
  })

  const fromServer = framing(false)
  const answer = async (frames: ReadonlyArray<Buffer>) => {
    for (const frame of frames) {
      if (frame[0] === 0x5a && atEnd !== undefined) {
        const last = atEnd
        atEnd = undefined
        await last()
      }
      if (!swallow && !client.destroyed) client.write(frame)
    }
  }
  let answered = Promise.resolve()
  server.on("data", (chunk) => {
    const frames = fromServer(chunk)
    answered = answered.then(() => answer(frames))
  })
  server.on("close", () => void answered.then(() => client.end()))
  client.on("close", () => server.end())
}

export interface PostgresFaults extends Faults {
  /** The same database through the proxy. */
  readonly url: string
  readonly close: () => Promise<void>
}

/** `heard`: whether a connection's statements count, by its start-up message. */
export const startPostgresFaults = async (
  target: string,
  heard: (startup: string) => boolean = () => true
): Promise<PostgresFaults> => {
  const to = new URL(target)
  const counter = makeCounter()
  const sockets = new Set<Socket>()
  const listener = createServer({ noDelay: true }, (client) => {
    const server = connect({ port: Number(to.port || 5432), host: to.hostname, noDelay: true })
    for (const socket of [client, server]) {
      sockets.add(socket)
      socket.on("error", () => {}).on("close", () => sockets.delete(socket))
    }
    serve(client, server, counter, heard)
  })
  await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve))
  const { port } = listener.address() as AddressInfo
  return {
    kinds,
    arm: counter.arm,
    watch: counter.watch,
    rest: counter.rest,
    url: Object.assign(new URL(target), { port: String(port) }).href,
    close: () =>
      new Promise((resolve) => {
        for (const socket of sockets) socket.destroy()
        listener.close(() => resolve())
      })
  }
}
