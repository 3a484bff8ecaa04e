/** PostgreSQL: statements that fail, each in turn. */
import { postgres } from "./engines.js"
import { methodSuite } from "./suite.js"

methodSuite(postgres)
