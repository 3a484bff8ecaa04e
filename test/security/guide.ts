/** The roles of docs/guides/security.md: its own SQL, with names that no other run has. */
import { randomBytes } from "node:crypto"
import { readFileSync } from "node:fs"
import { fileURLToPath } from "node:url"
import pg from "pg"
import { createDatabase, withClient } from "../support/postgres.js"

export const roleNames = ["owner", "worker", "enqueuer", "monitor"] as const
export type Role = (typeof roleNames)[number]

const guide = readFileSync(fileURLToPath(new URL("../../docs/guides/security.md", import.meta.url)), "utf8")

const [setUp = "", grants = ""] = [...guide.matchAll(/^```sql\n([\s\S]*?)^```$/gm)].map(([, text]) => text)

export interface Roles {
  /** The database as its administrator sees it. */
  readonly url: string
  readonly urlOf: (role: Role) => string
  readonly nameOf: (role: Role) => string
  /** What the guide says is done after each migration, as the owner. */
  readonly grant: () => Promise<void>
  readonly drop: () => Promise<void>
}

/** A fresh database with the roles of the guide, before the first migration. */
export const makeRoles = async (runUrl: string): Promise<Roles> => {
  const url = await createDatabase(runUrl)
  const run = randomBytes(4).toString("hex")
  const database = decodeURIComponent(new URL(url).pathname.slice(1))
  const nameOf = (role: Role) => `alkstore_${role}_${run}`
  const here = (text: string) =>
    text
      .replaceAll(/\balkstore_(owner|worker|enqueuer|monitor)\b/g, (_, role: Role) => nameOf(role))
      .replaceAll(/\bDATABASE app\b/g, `DATABASE ${pg.escapeIdentifier(database)}`)
  const password = randomBytes(8).toString("hex")
  const urlOf = (role: Role) => Object.assign(new URL(url), { username: nameOf(role), password }).href
  await withClient(url, async (admin) => {
    await admin.query(here(setUp))
    for (const role of roleNames) await admin.query(`ALTER ROLE ${nameOf(role)} PASSWORD '${password}'`)
  })
  return {
    url,
    urlOf,
    nameOf,
    grant: () => withClient(urlOf("owner"), async (owner) => void (await owner.query(here(grants)))),
    drop: () =>
      withClient(url, async (admin) => {
        const names = roleNames.map(nameOf).join(", ")
        await admin.query(`DROP OWNED BY ${names} CASCADE`)
        await admin.query(`DROP ROLE ${names}`)
      })
  }
}
