/** How long this process stood still, in all: what a busy machine did not let run is no fault of the product's. */

const every = 50

/** A turn that comes so much later than it should was held up. */
const late = 20

export interface HeldUp {
  /** Milliseconds in which nothing ran, of those between two instants of `performance.now()`. */
  readonly between: (from: number, to: number) => number
  readonly stop: () => void
}

export const watchTurns = (): HeldUp => {
  const gaps: Array<readonly [from: number, to: number]> = []
  let last = performance.now()
  const timer = setInterval(() => {
    const now = performance.now()
    if (now - last > every + late) gaps.push([last + every, now])
    last = now
  }, every)
  return {
    between: (from, to) =>
      gaps.reduce((sum, [begin, end]) => sum + Math.max(0, Math.min(end, to) - Math.max(begin, from)), 0),
    stop: () => clearInterval(timer)
  }
}
