/** PostgreSQL: the whole life of workers, with a fault at each statement in turn. */
import { listeningPostgres } from "./engines.js"
import { lifeSuite } from "./lives.js"

lifeSuite(listeningPostgres)
