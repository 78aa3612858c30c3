-- Every value above the inline limit stands once in `blobs`; other tables hold references to it.

CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE attribute_indexes (
    index_key TEXT PRIMARY KEY,
    index_type INTEGER NOT NULL
) WITHOUT ROWID;

-- The latest run of a Flow is the one with the largest key.
CREATE TABLE runs (
    run_key INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL UNIQUE,
    flow_id TEXT NOT NULL,
    flow_type TEXT NOT NULL,
    request_id TEXT NOT NULL,
    first_run_id TEXT NOT NULL,
    run_attempt INTEGER NOT NULL,
    started_at REAL NOT NULL,
    status INTEGER NOT NULL,
    closed_at REAL,
    deadline_at REAL,
    sequence INTEGER NOT NULL,
    event_count INTEGER NOT NULL,
    message_count INTEGER NOT NULL,
    execution_count INTEGER NOT NULL,
    counters TEXT NOT NULL,
    closing INTEGER NOT NULL,
    sticky_worker TEXT NOT NULL
);
CREATE INDEX runs_by_flow ON runs (flow_id, run_key);
CREATE INDEX runs_open ON runs (run_key) WHERE status = 1;

-- What is written once or twice in a run's life is kept out of the row that every commit rewrites.
CREATE TABLE run_details (
    run_key INTEGER PRIMARY KEY,
    start_request BLOB NOT NULL,
    config BLOB NOT NULL,
    result BLOB NOT NULL
);

CREATE TABLE executions (
    run_key INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,
    step_type TEXT NOT NULL,
    number INTEGER NOT NULL,
    phase INTEGER NOT NULL,
    standing INTEGER NOT NULL,
    wake_at REAL,
    origin_event INTEGER NOT NULL,
    origin_index INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    first_attempt_at REAL NOT NULL,
    ready_at REAL NOT NULL,
    queued_for REAL NOT NULL,
    snapshot INTEGER,
    movement BLOB NOT NULL,
    heartbeat BLOB,
    last_failure BLOB,
    condition BLOB,
    timers TEXT,
    results BLOB,
    step_locals BLOB,
    PRIMARY KEY (run_key, ordinal)
) WITHOUT ROWID;

-- A superseded version stays only while an unfinished method call still reads at its sequence.
CREATE TABLE attributes (
    run_key INTEGER NOT NULL,
    in_map INTEGER NOT NULL,
    key TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    value BLOB,
    PRIMARY KEY (run_key, in_map, key, sequence)
) WITHOUT ROWID;

-- `padding` fills the leaf page, so `content` lies in overflow pages: those are never copied when
-- the tree is rebalanced, and are overwritten with zeros when they are freed.
CREATE TABLE hard_values (
    hard_key INTEGER PRIMARY KEY,
    flow_id TEXT NOT NULL,
    key TEXT NOT NULL,
    padding BLOB NOT NULL,
    content BLOB NOT NULL,
    UNIQUE (flow_id, key)
);

CREATE TABLE messages (
    run_key INTEGER NOT NULL,
    position INTEGER NOT NULL,
    channel TEXT NOT NULL,
    message_id TEXT NOT NULL,
    value BLOB NOT NULL,
    created INTEGER NOT NULL,
    removed INTEGER,
    PRIMARY KEY (run_key, position)
) WITHOUT ROWID;

CREATE TABLE events (
    run_key INTEGER NOT NULL,
    event_id INTEGER NOT NULL,
    at REAL NOT NULL,
    origin_event INTEGER NOT NULL,
    origin_index INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (run_key, event_id)
) WITHOUT ROWID;

CREATE TABLE blobs (
    blob_key INTEGER PRIMARY KEY,
    flow_id TEXT NOT NULL,
    blob_id TEXT NOT NULL,
    size INTEGER NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (flow_id, blob_id)
);

CREATE TABLE stream_families (
    family_key INTEGER PRIMARY KEY,
    flow_type TEXT NOT NULL,
    stream_name TEXT NOT NULL,
    UNIQUE (flow_type, stream_name)
);

CREATE TABLE stream_messages (
    position INTEGER PRIMARY KEY,
    family_key INTEGER NOT NULL,
    flow_id TEXT NOT NULL,
    at REAL NOT NULL,
    source TEXT NOT NULL,
    size INTEGER NOT NULL,
    value BLOB NOT NULL
);
CREATE INDEX stream_messages_by_flow ON stream_messages (family_key, flow_id, position);
CREATE INDEX stream_messages_by_family ON stream_messages (family_key, position, size);
