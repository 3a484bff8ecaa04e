/**
 * `node ci-summary.mjs <vitest report> <exit code>`: prints `N passed, N failed` as one line, and fails unless every
 * step and every test passed. A step that failed, or a test file that could not run, counts as one failure.
 */
import { existsSync, readFileSync } from "node:fs"

const [report = "", code = "1"] = process.argv.slice(2)

const { numFailedTests, numPassedTests, testResults } = existsSync(report)
  ? JSON.parse(readFileSync(report, "utf8"))
  : { numFailedTests: 0, numPassedTests: 0, testResults: [] }

const brokenFiles = testResults.filter(
  ({ assertionResults, status }) => status === "failed" && !assertionResults.some((test) => test.status === "failed")
).length
const failures = numFailedTests + brokenFiles
const failed = failures === 0 && (code !== "0" || numPassedTests === 0) ? 1 : failures

console.log(`${numPassedTests} passed, ${failed} failed`)
process.exit(failed === 0 ? 0 : 1)
