-- The database's schema, as migrations that only ever grow: a fresh and an old file take the same path. Statements are
-- split at semicolons, so none may stand in a comment or a literal.

-- migration 1
CREATE TABLE answers (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL,
    record TEXT NOT NULL,      -- keys, kind, answered, probabilities, members as JSON
    trajectory BLOB,           -- see focalroute.store.codec, NULL where no policy decided
    receipt TEXT NOT NULL,
    texts TEXT
);
CREATE TABLE feedback (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    answer_id TEXT NOT NULL REFERENCES answers (id) ON DELETE CASCADE,
    source TEXT NOT NULL,
    reward REAL NOT NULL,
    label TEXT,
    created_at REAL NOT NULL,
    UNIQUE (answer_id, source)
);
CREATE TABLE capabilities (
    key TEXT PRIMARY KEY,
    probed_at REAL NOT NULL,
    capability_values TEXT NOT NULL
);
CREATE TABLE ledger (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    answer_id TEXT NOT NULL,   -- of no answer, for a probe or an ask that failed
    endpoint TEXT NOT NULL,
    at REAL NOT NULL,
    prompt_tokens INTEGER,     -- all five NULL where no usage came back
    completion_tokens INTEGER,
    cached_tokens INTEGER,
    reasoning_tokens INTEGER,
    provider_pico INTEGER,
    cost_pico INTEGER,         -- 1e-12 USD, NULL where unknown
    cost_source TEXT NOT NULL,
    tags TEXT NOT NULL
);
CREATE TABLE ledger_sums (     -- what pruned ledger rows added up to
    endpoint TEXT PRIMARY KEY,
    calls INTEGER NOT NULL,
    unpriced INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    micro INTEGER NOT NULL,    -- costs summed as whole 1e-6 USD
    pico INTEGER NOT NULL      -- and what was left of each, in 1e-12 USD
);

-- migration 2
CREATE TABLE probes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    answer_id TEXT NOT NULL REFERENCES answers (id) ON DELETE CASCADE,
    endpoint TEXT NOT NULL,
    record TEXT NOT NULL,      -- endpoint, key, completion_tokens, latency_s, usd as JSON
    UNIQUE (answer_id, endpoint)
);

-- migration 3
CREATE TABLE reservations (    -- calls under way, or of a process that died
    id TEXT PRIMARY KEY,
    answer_id TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    at REAL NOT NULL,
    pico INTEGER NOT NULL,
    tags TEXT NOT NULL
);
CREATE TABLE balances (        -- what every limit is held against, see focalroute.store.accounts
    tag TEXT NOT NULL,         -- '' for all calls
    period_s INTEGER NOT NULL, -- 0 for ever
    period INTEGER NOT NULL,   -- the number of the period that the amounts are of
    spent TEXT NOT NULL,       -- whole 1e-12 USD as text, as they may pass 64 bits
    reserved TEXT NOT NULL,
    PRIMARY KEY (tag, period_s)
);
CREATE INDEX ledger_at ON ledger (at);

-- migration 4
ALTER TABLE reservations ADD COLUMN until REAL;  -- then its process is dead, NULL: not known
ALTER TABLE ledger ADD COLUMN overdue TEXT;      -- the reservation that this row estimates
CREATE INDEX ledger_overdue ON ledger (overdue) WHERE overdue IS NOT NULL;

-- migration 5
-- of endpoints whose breaker ever changed, open_until NULL where it is closed. Without an index of its own, so that
-- the schema keeps to one page, and a file with any other page damaged can still be opened
CREATE TABLE health (key TEXT PRIMARY KEY, open_until REAL, ejections INTEGER, changed_at REAL) WITHOUT ROWID;

-- migration 6
-- checksums, see focalroute.store.sqlite.checksums
ALTER TABLE answers ADD COLUMN crc INTEGER;
ALTER TABLE feedback ADD COLUMN crc INTEGER;
ALTER TABLE probes ADD COLUMN crc INTEGER;
ALTER TABLE ledger ADD COLUMN crc INTEGER;
ALTER TABLE ledger_sums ADD COLUMN crc INTEGER;
ALTER TABLE capabilities ADD COLUMN crc INTEGER;
ALTER TABLE reservations ADD COLUMN crc INTEGER;
ALTER TABLE balances ADD COLUMN crc INTEGER;
ALTER TABLE health ADD COLUMN crc INTEGER;
INSERT INTO sqlite_sequence (name, seq) VALUES ('chain', '');

-- migration 7
-- From now on the sums are of all rows up to number upto, pruned or not. An ask counts at the endpoint it called first.
ALTER TABLE ledger_sums ADD COLUMN asks INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger_sums ADD COLUMN upto INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger_sums ADD COLUMN pruned INTEGER NOT NULL DEFAULT 0;
UPDATE ledger_sums SET pruned = 1;
CREATE INDEX ledger_ask ON ledger (answer_id);
