/**
 * No source of wakes but this process's own commits, or not even those: work is found by polling.
 */
import { type Duration, Effect, Layer } from "effect"
import { Wake } from "../../services/Wake.js"
import { makeWakeHub } from "./WakeHub.js"

/** Wakes of this process only: an in-memory database, or wakes switched off. */
export const layerLocal = (pollInterval: Duration.Duration, reason: string, live = false) =>
  Layer.sync(Wake, () => makeWakeHub(live ? { _tag: "Live" } : { _tag: "PollOnly", reason }, pollInterval).service)

/** No wake ever comes: what polling alone must be able to do. */
export const layerSilent = (pollInterval: Duration.Duration) =>
  Layer.sync(Wake, () => ({
    ...makeWakeHub({ _tag: "PollOnly", reason: "silent" }, pollInterval).service,
    wake: () => Effect.void
  }))
