/** What can happen to a statement, and who makes it happen: see `postgresFaults` and `sqliteFaults`. */

export interface Kind {
  readonly name: string
  /** The statement was executed, and its answer is lost. */
  readonly took: boolean
  /** Nobody is told whether it was: the connection was lost. */
  readonly silent: boolean
  /** Whether a database can answer this statement so. */
  readonly applies: (text: string) => boolean
}

/** Which statement: the so-manieth of all, or of those of one name. */
export type Place = number | { readonly name: string; readonly time: number }

export interface Faults {
  readonly kinds: ReadonlyArray<Kind>
  /** From now on statements are counted; one of them meets its fault. */
  readonly arm: (at: Place, kind: Kind) => void
  /** From now on statements are counted; `seen` is waited for after each, before its answer is given. */
  readonly watch: (seen: (text: string) => unknown) => void
  /** No counting any more. Answers the statement that met the fault, and how many there were. */
  readonly rest: () => { readonly count: number; readonly struck: string | undefined }
}

/** Counts, and says which statement is the one. */
export const makeCounter = () => {
  let counting = false
  let count = 0
  let ofItsName = 0
  let plan: { readonly at: Place; readonly kind: Kind } | undefined
  let struck: string | undefined
  let seen: ((text: string) => unknown) | undefined
  const start = () => {
    counting = true
    count = 0
    ofItsName = 0
    struck = undefined
  }
  return {
    arm: (at: Place, kind: Kind) => {
      start()
      plan = { at, kind }
    },
    watch: (look: (text: string) => unknown) => {
      start()
      seen = look
    },
    rest: () => {
      counting = false
      plan = undefined
      seen = undefined
      return { count, struck }
    },
    /** The fault of the statement that comes now. */
    next: (text: string): Kind | undefined => {
      if (!counting) return undefined
      count++
      if (plan === undefined || struck !== undefined) return undefined
      const { at, kind } = plan
      if (typeof at === "number" ? at > count : at.name !== nameOf(text) || at.time > ++ofItsName) return undefined
      // What cannot happen to this one, happens to the next to which it can
      if (!kind.applies(text)) return undefined
      struck = text
      return kind
    },
    seen: (text: string): unknown => (counting ? seen?.(text) : undefined),
    /** Whether somebody wants to know of each. */
    watched: () => counting && seen !== undefined
  }
}

/** The first words of a statement, as people say them. */
export const nameOf = (text: string): string =>
  /^\/\* alkstore:(\w+) \*\//.exec(text)?.[1] ?? text.slice(0, 40).replaceAll(/\d+/g, "n")

export const isCommit = (text: string): boolean => /^(\/\* alkstore:commit \*\/ )?COMMIT/.test(text)
/** What ends or undoes: an engine that cannot do it has lost the transaction, one way or another. */
export const isUndoing = (text: string): boolean => /^(\/\* alkstore:rollback \*\/ )?(ROLLBACK|RELEASE)/.test(text)
