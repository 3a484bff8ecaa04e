/**
 * The database's own account of every lease, written by triggers in the transactions that change it: what no process can
 * forget to tell, or tell wrongly.
 */

const columns =
  "at BIGINT, job BIGINT, old_token BIGINT, token BIGINT, old_until BIGINT, until BIGINT, worker TEXT, lapsed INTEGER, gone INTEGER"

const own = [
  "CREATE TABLE orders (name TEXT NOT NULL)",
  // No key: what is there twice is to be seen
  "CREATE TABLE effects (job BIGINT NOT NULL, name TEXT NOT NULL, token BIGINT NOT NULL, pid BIGINT NOT NULL)",
  "CREATE TABLE guarded (steps BIGINT NOT NULL)",
  "INSERT INTO guarded (steps) VALUES (0)"
]

const postgres = [
  `CREATE TABLE lease_history (n bigserial PRIMARY KEY, ${columns})`,
  `CREATE FUNCTION note_lease() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO public.lease_history (at, job, old_token, token, old_until, until, worker, lapsed, gone)
    VALUES (floor(extract(epoch from clock_timestamp()) * 1000), OLD.id, OLD.token, NEW.token, OLD.visible_at, NEW.visible_at,
      coalesce(NEW.worker, OLD.worker), (coalesce(NEW.crashes, OLD.crashes) > OLD.crashes)::int, (TG_OP = 'DELETE')::int);
    RETURN NULL;
  END $$`,
  "CREATE TRIGGER note_lease AFTER UPDATE OR DELETE ON alkstore.jobs FOR EACH ROW EXECUTE FUNCTION note_lease()"
]

const sqliteTrigger = (event: "UPDATE" | "DELETE") => {
  const [token, until, worker, lapsed] =
    event === "UPDATE"
      ? ["NEW.token", "NEW.visible_at", "coalesce(NEW.worker, OLD.worker)", "NEW.crashes > OLD.crashes"]
      : ["NULL", "NULL", "OLD.worker", "0"]
  return `CREATE TRIGGER note_lease_${event} AFTER ${event} ON "_alkstore_jobs" BEGIN
    INSERT INTO lease_history (at, job, old_token, token, old_until, until, worker, lapsed, gone)
    VALUES (CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER), OLD.id, OLD.token, ${token}, OLD.visible_at, ${until}, ${worker}, ${lapsed}, ${event === "DELETE" ? 1 : 0});
  END`
}

const sqlite = [
  `CREATE TABLE lease_history (n INTEGER PRIMARY KEY AUTOINCREMENT, ${columns})`,
  sqliteTrigger("UPDATE"),
  sqliteTrigger("DELETE")
]

export const tables = { postgres: [...own, ...postgres], sqlite: [...own, ...sqlite] }

export const hostNow = {
  postgres: "SELECT floor(extract(epoch from clock_timestamp()) * 1000)::bigint AS now",
  sqlite: "SELECT CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) AS now"
}
