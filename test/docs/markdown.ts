/** The TypeScript blocks of the documentation. */
import { readdirSync, readFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"

export const root = fileURLToPath(new URL("../..", import.meta.url))

export const read = (file: string): string => readFileSync(join(root, file), "utf8")

/** All files under a folder, by path from the root, without those that git does not keep. */
export const filesUnder = (folder: string, ext: string): ReadonlyArray<string> =>
  readdirSync(join(root, folder), { recursive: true })
    .map((file) => `${folder}/${String(file).replaceAll("\\", "/")}`)
    .filter((file) => file.endsWith(ext) && !/\/(\.tmp|node_modules)\//.test(file))
    .sort()

export interface Block {
  /** A name for a file: `README-1`. */
  readonly name: string
  /** What follows `ts` on the fence's line: `test` for a test. */
  readonly kind: string
  readonly code: string
}

export const blocksOf = (file: string): ReadonlyArray<Block> =>
  [...read(file).matchAll(/^```ts ?(.*)\n([\s\S]*?)^```$/gm)].map(([, kind = "", code = ""], index) => ({
    name: `${file.replace(/\.md$/, "").replaceAll("/", "-")}-${index + 1}`,
    kind,
    code
  }))

export const documents: ReadonlyArray<string> = ["README.md", "ARCHITECTURE.md", ...filesUnder("docs", ".md")]
