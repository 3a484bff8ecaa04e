/**
 * Whoever enqueues wakes the workers of its own process after the commit, and hears of it by its own notification as well.
 * Whichever comes first counts: both would cost every worker of the queue a second claim.
 *
 * Only notifications are left out that are known to be one's own, one by one. Each connection's come in the order of its
 * commits, so a count for each connection and topic is enough.
 */

/** Statements of this process that notify, as they begin and end. */
export interface Echoes {
  /**
   * A statement begins on the connection of this server process, and will notify of a topic if it commits. Answers what to
   * call when it has ended: whether it committed; it says whether its notification has been heard. If not, whoever sent it
   * has to wake the listeners of this process.
   */
  readonly begin: (pid: number, topic: string) => (committed: boolean) => boolean
  /** Whether a notification says nothing new; asked once for each that comes. */
  readonly covers: (pid: number, topic: string) => boolean
  /** LISTEN has begun (again): what was sent before may come or not. */
  readonly listening: () => void
}

/** More are not kept: behind a pooler, whose processes are not the server's, none is ever heard of. */
const most = 1_000

interface Sent {
  /** Of LISTEN's: what began before it did may have committed before as well. */
  readonly era: number
  heard: boolean
}

export const makeEchoes = (): Echoes => {
  let era = 0
  /** Under way, and committed and not heard yet. */
  const open = new Map<string, Sent>()
  const due = new Map<string, number>()

  return {
    begin: (pid, topic) => {
      const key = `${pid} ${topic}`
      const sent: Sent = { era, heard: false }
      open.set(key, sent)
      return (committed) => {
        open.delete(key)
        if (!committed || sent.era !== era) return false
        if (sent.heard) return true
        if (due.size >= most) due.clear()
        due.set(key, (due.get(key) ?? 0) + 1)
        return false
      }
    },
    covers: (pid, topic) => {
      const key = `${pid} ${topic}`
      const count = due.get(key) ?? 0
      if (count > 1) due.set(key, count - 1)
      else due.delete(key)
      if (count > 0) return true
      const sent = open.get(key)
      if (sent !== undefined) sent.heard = true
      return false
    },
    listening: () => {
      era++
      due.clear()
    }
  }
}
