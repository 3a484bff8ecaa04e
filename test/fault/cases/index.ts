/** All calls of all services that an engine provides. A service or a call without a case does not compile. */
import type * as Pg from "alkstore/Pg"
import type * as Sqlite from "alkstore/Sqlite"
import type { CasesOf } from "./enumerate.js"
import { lockCases } from "./lock.js"
import { operationCases } from "./operations.js"
import { queueCases } from "./queue.js"
import { clockCases, transferCases, wakeCases } from "./rest.js"
import { scheduleCases } from "./schedules.js"

type Services = Pg.Services | Sqlite.Services

export const serviceCases: { readonly [S in Services as S["Id"]]: CasesOf<S["Type"]> } = {
  "alkstore/Queue": { ...queueCases, ...operationCases },
  "alkstore/Schedules": scheduleCases,
  "alkstore/Lock": lockCases,
  "alkstore/Wake": wakeCases,
  "alkstore/Clock": clockCases,
  "alkstore/Transfer": transferCases
}
