/** SQLite: the whole life of workers, with a fault at each statement in turn. */
import { sqlite } from "./engines.js"
import { lifeSuite } from "./lives.js"

lifeSuite(sqlite)
