/**
 * One measurement in a process of its own: `measure <engine> <contender> <workload> <where> <sizes>`. The figures go
 * to the parent as messages, so that nothing a peer prints comes between.
 */
import { contenders } from "./contenders.js"
import { type Sizes, scaled } from "./figure.js"
import { warm } from "./inbox.js"
import { workloads } from "./workloads.js"

process.once("disconnect", () => process.exit(1))
const [engine, name, workloadName = "", where = "", json = "{}"] = process.argv.slice(2)
const contender = contenders.find((one) => one.engine === engine && one.name === name)
const workload = workloads.find((one) => one.name === workloadName)
if (contender === undefined || workload === undefined)
  throw new Error(`no ${engine} contender ${name}, or no workload ${workloadName}`)
const sizes = scaled(JSON.parse(json) as Sizes, contender, workloadName)
const session = await contender.open(where)
await warm(session)
const figures = await workload.run({ contender, where, sizes }, session)
await new Promise<void>((resolve) => process.send?.(figures, () => resolve()))
await session.close()
process.exit(0)
