/** Texts that would do harm if any of them became SQL, a pattern, a placeholder, a path or a property. */
import fc from "fast-check"

const pieces = [
  "'",
  "''",
  '"',
  '""',
  "`",
  "\\",
  "\\'",
  "--",
  "-- ",
  "/*",
  "*/",
  "/* x */",
  ";",
  "; DROP TABLE canary",
  "; DROP SCHEMA alkstore CASCADE",
  "; DELETE FROM canary; --",
  "' OR '1'='1",
  "') RETURNING *; --",
  "UNION SELECT",
  "$1",
  "$2",
  "$$",
  "$tag$",
  "?",
  "?1",
  ":now",
  ":queue",
  "@a",
  "::regclass",
  "%",
  "%s",
  "_",
  "{}",
  "[1]",
  "\u0000",
  "\u001a",
  "\n",
  "\r\n  ",
  "\t",
  "\ufeff",
  "\u2019",
  "\u02bc",
  "\uff07",
  "\u00e9",
  "e\u0301",
  "\u{1f980}",
  "\ud800",
  "\udc00",
  "__proto__",
  "constructor",
  "toString",
  "hasOwnProperty",
  "prototype",
  "NULL",
  "null",
  "undefined",
  "0",
  "-1",
  "1e999",
  "NaN",
  "../",
  "__alkstore_",
  " "
] as const

const piece = fc.oneof(
  { weight: 5, arbitrary: fc.constantFrom(...pieces) },
  fc.string({ unit: "binary", maxLength: 5 })
)

/** Any: short, or around the limits of keys and errors, or longer than all of them. */
export const hostile: fc.Arbitrary<string> = fc.oneof(
  { weight: 3, arbitrary: fc.constantFrom(...pieces) },
  { weight: 10, arbitrary: fc.array(piece, { minLength: 1, maxLength: 6 }).map((parts) => parts.join("")) },
  {
    weight: 1,
    arbitrary: fc.tuple(piece, fc.integer({ min: 100, max: 4_000 })).map(([text, times]) => text.repeat(times))
  }
)

/** What a queue may be called, as hostile as that can be. */
export const hostileName: fc.Arbitrary<string> = fc
  .array(
    fc.constantFrom(
      "--",
      ":now",
      ":queue",
      "::",
      "_",
      "../",
      "/",
      "__proto__",
      "constructor",
      "toString",
      "NULL",
      "0",
      "A",
      "."
    ),
    {
      minLength: 1,
      maxLength: 6
    }
  )
  .map((parts) => parts.join("").slice(0, 100))

/** As errors are stored: without what no database takes. */
export const storable = (text: string): string =>
  text.replaceAll("\u0000", "\ufffd").replace(/\p{Surrogate}/gu, "\ufffd")
