/**
 * When schedules are due, found out the slow way: by asking for the local time of one minute after the other. Shares
 * nothing with the product but the words of the promise: fixed times once a day, in the first pass of a repeated hour, at
 * the end of a gap; steps in real time through both.
 */
export type Rule =
  | { readonly at: string; readonly timeZone: string }
  | { readonly minutes: number; readonly timeZone: string }
  | { readonly everyMinutes: number }

const minute = 60_000

const localTime = (timeZone: string) => {
  const format = new Intl.DateTimeFormat("en-CA", {
    timeZone,
    hourCycle: "h23",
    year: "numeric",
    month: "2-digit",
    day: "2-digit",
    hour: "2-digit",
    minute: "2-digit"
  })
  return (at: number) => {
    const [date = "", time = ""] = format.format(at).split(", ")
    return { date, time }
  }
}

const find = (rule: Rule, from: number, to: number): ReadonlyArray<number> => {
  const found: Array<number> = []
  const first = Math.ceil(from / minute) * minute
  if ("everyMinutes" in rule) {
    for (let at = first; at <= to; at += minute) if (at % (rule.everyMinutes * minute) === 0) found.push(at)
    return found
  }
  const local = localTime(rule.timeZone)
  // A day before, so that the beginning of every local day is met
  let fired = ""
  for (let at = first - 1440 * minute; at <= to; at += minute) {
    const { date, time } = local(at)
    if ("minutes" in rule) {
      if (at >= from && Number(time.slice(3)) % rule.minutes === 0) found.push(at)
    } else if (date !== fired && time >= rule.at) {
      fired = date
      if (at >= from) found.push(at)
    }
  }
  return found
}

const known = new Map<string, ReadonlyArray<number>>()

/** All boundaries of a rule from one instant to another. */
export const boundaries = (rule: Rule, from: number, to: number): ReadonlyArray<number> => {
  const name = `${JSON.stringify(rule)} ${from} ${to}`
  const found = known.get(name) ?? find(rule, from, to)
  known.set(name, found)
  return found
}
