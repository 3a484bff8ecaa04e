/** What commits together: a transactional handler's effect with its ack, an order with its job. */
import type { Row } from "../database.js"
import { type Court, nOf, num, type Scene } from "./oracle.js"

/** Jobs of which every ack is in the transaction of an effect. */
const transactional = "books"

export const makeEffects = (court: Court) => {
  const effects = new Set<number>()

  const added = (scene: Scene, name: string): ReadonlyArray<Row> =>
    scene.changes.flatMap(({ after, before, table }) =>
      table === name && before === undefined && after !== undefined ? [after] : []
    )

  const acked = (scene: Scene): ReadonlyArray<Row> => {
    const dead = new Set(added(scene, "dead_letters").map((letter) => num(letter.id)))
    return scene.changes.flatMap(({ after, before, table }) =>
      table === "jobs" && after === undefined && before !== undefined && !dead.has(num(before.id)) ? [before] : []
    )
  }

  return {
    look: (scene: Scene): void => {
      const acks = new Set(acked(scene).map((row) => num(row.token)))
      for (const row of acked(scene))
        if (row.queue === transactional && !added(scene, "effects").some((effect) => effect.token === row.token))
          court.wrong(`${row.id} of ${row.queue} is acked without its effect`)
      for (const { id, token } of added(scene, "effects")) {
        if (!acks.has(num(token))) court.wrong(`the effect of ${id} commits without its ack`)
        if (effects.has(num(id))) court.wrong(`the effect of ${id} commits twice`)
        effects.add(num(id))
      }
      const orders = new Set(added(scene, "orders").map(({ n }) => num(n)))
      for (const order of orders)
        if (!added(scene, "jobs").some((row) => nOf(row) === order))
          court.wrong(`order ${order} commits without its job`)
    }
  }
}
