/** An idle loop's sleep: a wake that comes while the loop is busy is not forgotten. */
export const makeSleeper = () => {
  let woken = false
  let end: () => void = () => undefined
  return {
    wake: () => {
      woken = true
      end()
    },
    /** Before looking for work: what comes from here on is not to be missed. */
    begin: () => {
      woken = false
    },
    sleep: async (most: number) => {
      if (woken) return
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, most)
        end = () => {
          clearTimeout(timer)
          resolve()
        }
      })
      end = () => undefined
    }
  }
}
