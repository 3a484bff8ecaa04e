/** Everybody who takes part. */
import type { Contender } from "./contender.js"
import { alkstorePostgres, alkstoreSqlite } from "./contenders/alkstore.js"
import { graphileWorker, graphileWorkerDefaults } from "./contenders/graphileWorker.js"
import { persistedQueuePostgres, persistedQueueSqlite } from "./contenders/persistedQueue.js"
import { pgBoss } from "./contenders/pgBoss.js"
import { plainjob } from "./contenders/plainjob.js"
import { rawPostgres } from "./contenders/rawPostgres.js"
import { rawSqlite } from "./contenders/rawSqlite.js"

export const contenders: ReadonlyArray<Contender> = [
  rawPostgres,
  alkstorePostgres,
  graphileWorker,
  graphileWorkerDefaults,
  pgBoss,
  persistedQueuePostgres,
  rawSqlite,
  alkstoreSqlite,
  plainjob,
  persistedQueueSqlite
]
