/**
 * The rules of this repository that Biome cannot express; `npm run lint` runs both.
 * Prints one line per violation and fails if there is any.
 */
import { execFileSync } from "node:child_process"
import { readdirSync, readFileSync, statSync } from "node:fs"

const maxLines = 300

/** A file's text with its comments blanked, line for line. */
const code = (text) =>
  text.replace(/\/\*[\s\S]*?\*\//g, (comment) => comment.replace(/[^\n]/g, "")).replace(/(^|\s)\/\/.*$/gm, "")

/** Each law: the files it is for, what it forbids, and why. `of: code` leaves comments in peace. */
const laws = [
  {
    files: /./,
    forbids: /\b(?:TO(?:DO)|FIX(?:ME))\b/,
    why: "do it now, or write an issue"
  },
  {
    files: /./,
    forbids: /(?<![\w.~@$})-])\/(work|home|root|Users)\//,
    why: "a path of one machine means nothing on another"
  },
  {
    files: /^package-lock\.json$/,
    forbids: /"resolved": "http/,
    why: "the registry is each user's choice; see .npmrc"
  },
  {
    files: /^src\/.*\.ts$/,
    of: code,
    forbids: /\borDie/,
    why: "a failure that callers can meet belongs in the error channel"
  },
  {
    files: /^src\/.*\.ts$/,
    forbids:
      /biome-ignore(-all|-start)? (plugin|lint\/plugin|lint\/style\/noRestricted|lint\/suspicious\/noExplicitAny|lint:)/,
    why: "the import law, the time law and noExplicitAny have no exceptions"
  },
  {
    files: /^src\/(?!schedule\/forkLoop\.ts$).*\.ts$/,
    of: code,
    forbids: /\bforkScoped\b/,
    why: "a loop has to end also where its Layer was built uninterruptibly; see src/schedule/forkLoop.ts"
  },
  {
    files: /^test\/.*\.ts$/,
    of: code,
    forbids: /\.(only|skip|todo)\b\s*[(.]/,
    why: "every test runs; use runIf for what a machine cannot do"
  },
  {
    files: /^test\/.*\.test\.ts$/,
    of: code,
    forbids: /\b(spawn|exec|execFile)Sync\b/,
    why: "the test runner waits for its worker's event loop; see test/support/programs.ts"
  }
]

/** Everything git would take; without a repository that git trusts, everything but what is installed and built. */
const listFiles = () => {
  try {
    const list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    return execFileSync("git", list, { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }).split("\0")
  } catch {
    return readdirSync(".", { recursive: true })
      .map((file) => file.replaceAll("\\", "/"))
      .filter((file) => !/(^|\/)(node_modules|dist|coverage|\.git|\.tmp)(\/|$)|\.db(-|$)|\.(log|tgz)$/.test(file))
  }
}

const files = [...new Set(listFiles())].filter((file) => statSync(file, { throwIfNoEntry: false })?.isFile())

const violations = []
for (const file of files) {
  const text = readFileSync(file, "utf8")
  if (text.includes("\0")) continue
  for (const { files: scope, forbids, of, why } of laws) {
    if (!scope.test(file)) continue
    const lines = (of === undefined ? text : of(text)).split("\n")
    for (const [index, line] of lines.entries()) {
      const found = forbids.exec(line)
      if (found !== null) violations.push(`${file}:${index + 1}: ${found[0].trim()}: ${why}`)
    }
  }
  const length = text.split("\n").length - (text.endsWith("\n") ? 1 : 0)
  if (file.startsWith("src/") && length > maxLines) {
    violations.push(`${file}: ${length} lines: a file of src has at most ${maxLines}; split it`)
  }
}

for (const violation of violations) console.error(violation)
if (violations.length > 0) process.exit(1)
console.log(`Laws: ${files.length} files, no violation.`)
