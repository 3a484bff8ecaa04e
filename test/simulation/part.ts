/** One process of the long form: `part.ts <first seed> <count> <step>`; prints what came of each life as a line of JSON. */
import { liveHere, range } from "./lives.js"

const [from = 1, count = 1, step = 1] = process.argv.slice(2).map(Number)

await liveHere(range(from, count, step), true, (total) => void process.stdout.write(`${JSON.stringify(total)}\n`))
