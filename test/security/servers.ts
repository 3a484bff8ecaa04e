/** Servers that are no PostgreSQL, or a very short one. */
import { type AddressInfo, createServer, type Socket } from "node:net"
import { afterAll } from "vitest"

const message = (type: string, body: Buffer): Buffer => {
  const head = Buffer.alloc(5)
  head.write(type, 0, "latin1")
  head.writeInt32BE(body.length + 4, 1)
  return Buffer.concat([head, body])
}

const cleartextPassword = message("R", Buffer.from([0, 0, 0, 3]))

const authenticationFailed = message(
  "E",
  Buffer.from('SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed for user "someone"\0\0')
)

const behaviours = {
  garbage: (socket: Socket) => void socket.end("HTTP/1.1 400 Bad Request\r\n\r\n"),
  hangUp: (socket: Socket) => void socket.destroy(),
  /** "S": yes, TLS; and then no TLS. */
  tlsGarbage: (socket: Socket) => void socket.write("S", () => socket.end("garbage".repeat(10))),
  refusal: (socket: Socket) => {
    socket.write(cleartextPassword)
    socket.once("data", () => socket.end(authenticationFailed))
  }
}

const open = new Set<{ readonly close: () => void }>()

/** To be called while tests are collected, or in one: it is closed with the file. */
export const startServer = async (behaviour: keyof typeof behaviours): Promise<{ readonly url: string }> => {
  const server = createServer((socket) => {
    socket.on("error", () => {})
    socket.once("data", () => behaviours[behaviour](socket))
  })
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve))
  server.unref()
  open.add(server)
  return { url: `postgres://someone@127.0.0.1:${(server.address() as AddressInfo).port}/db` }
}

afterAll(() => {
  for (const server of open) server.close()
})
