/**
 * Processes beside the measuring one.
 */
import { fork } from "node:child_process"
import { fileURLToPath } from "node:url"

/** What a helper is told, as its second argument. */
export interface Orders {
  /** The contender's name. */
  readonly name: string
  readonly engine: string
  readonly where: string
  /** Jobs to handle, commits a second, or milliseconds to hold a lock. */
  readonly count: number
}

export interface Helper {
  /** Waits for the helper's next word. */
  readonly next: () => Promise<unknown>
  /** Tells it to come to an end, waits for its last word. */
  readonly finish: () => Promise<unknown>
}

/** Starts a process in this role, waits until it is ready. It ends with this process, whatever happens. */
export const startHelper = async (role: string, { count, engine, name, where }: Orders): Promise<Helper> => {
  const orders: Orders = { name, engine, where, count }
  const child = fork(fileURLToPath(new URL("./helper.js", import.meta.url)), [role, JSON.stringify(orders)], {
    serialization: "advanced",
    execArgv: []
  })
  const words: Array<unknown> = []
  let heard: () => void = () => undefined
  let gone = false
  child.on("message", (word) => {
    words.push(word)
    heard()
  })
  child.once("exit", () => {
    gone = true
    heard()
  })
  const next = async () => {
    while (words.length === 0) {
      if (gone) throw new Error(`the process "${role}" has ended`)
      await new Promise<void>((resolve) => {
        heard = resolve
      })
    }
    return words.shift()
  }
  await next()
  return {
    next,
    finish: () => {
      child.send("finish")
      return next()
    }
  }
}
