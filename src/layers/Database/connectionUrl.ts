/**
 * Connection strings: which are taken, and how they are shown. The driver guesses at what is no url (a list like
 * `host=a password=b` would become a database's name) and what it takes for a host or a database is in its errors.
 */
import { Either, Redacted } from "effect"
import { InvalidArgument } from "../../services/Errors.js"

/** Urls, and the two forms that name a socket; without any, the driver goes by its environment. */
const forms = /^(postgres(ql)?:|socket:|\/|$)/i

/** A password with `/` or `#` in it, which ends the authority: the rest would be a database. */
const cutShort = /^\w+:\/\/[^/?#]*(\/[^?#]*@|[^?]*#)/

export const checkUrl = (argument: string, url: Redacted.Redacted): Either.Either<void, InvalidArgument> => {
  const text = Redacted.value(url)
  return forms.test(text) && !cutShort.test(text)
    ? Either.void
    : Either.left(
        new InvalidArgument({
          argument,
          message: `${argument}: is not of the form postgres://user:password@host:5432/database. Write @ / # of a user or a password as %40 %2F %23`
        })
      )
}

const withoutUrlSecrets = (scheme: string, rest: string): string =>
  scheme + rest.replace(/^([^:@/?#]*):.*@/, "$1:***@").replace(/[?#].*$/, "")

/** A text without the passwords and parameters of the urls in it, whatever they are urls of. */
export const withoutSecrets = (text: string): string =>
  text
    .replace(/([a-z][a-z0-9+.-]*:\/\/)([^\s'"]*)/gi, (_, scheme: string, rest: string) =>
      withoutUrlSecrets(scheme, rest)
    )
    .replace(/(password\s*=\s*)\S+/gi, "$1***")
