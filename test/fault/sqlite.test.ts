/** SQLite: statements that fail, each in turn. */
import { sqlite } from "./engines.js"
import { methodSuite } from "./suite.js"

methodSuite(sqlite)
