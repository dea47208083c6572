-- The tables of the facts: what `reading.py` keeps of each record, and what `timeline.sql` and `checks.sql` read.
--
-- `part`, `off` and `ts` are partition, offset and append time (ms since the epoch); `early` says that the record lies
-- before the first capture of the ends (see `run.py`). Columns of type BLOB, such as `whole`, are digests: equal for
-- equal content. A record whose fields have other types than these was not written by the product and leaves no fact.
-- The tables of records that a service may give up get one column more, `error`: why it did (`checks.py`).

-- name: query
-- A question. `query_id` is NULL if the record could not be read.
CREATE TABLE Query (
    query_id TEXT, part INTEGER NOT NULL, off INTEGER NOT NULL, early INTEGER NOT NULL, ts INTEGER NOT NULL,
    asked BLOB, timeout_ms INTEGER, wait_ms INTEGER
) STRICT;

-- name: context
-- A question with its embedding; q_part and q_off are partition and offset of its Query.
CREATE TABLE Context (
    query_id TEXT NOT NULL, part INTEGER NOT NULL, off INTEGER NOT NULL, early INTEGER NOT NULL, ts INTEGER NOT NULL,
    q_part INTEGER NOT NULL, q_off INTEGER NOT NULL, vector BLOB NOT NULL
) STRICT;

-- name: decision
-- An action chosen for a query. `gold` is the reference, where it is a plain whole number; `unable` says whether the action
-- lacks something that the query requires.
CREATE TABLE Decision (
    query_id TEXT NOT NULL, part INTEGER NOT NULL, off INTEGER NOT NULL, early INTEGER NOT NULL, ts INTEGER NOT NULL,
    whole BLOB NOT NULL, seq INTEGER NOT NULL, action TEXT NOT NULL, objective BLOB NOT NULL, version INTEGER NOT NULL,
    q_part INTEGER NOT NULL, q_off INTEGER NOT NULL, asked BLOB NOT NULL, gold INTEGER, appended_ms INTEGER NOT NULL,
    learn INTEGER NOT NULL, timeout_ms INTEGER, wait_ms INTEGER, factor REAL NOT NULL, verified TEXT NOT NULL,
    prices TEXT NOT NULL, attempt INTEGER NOT NULL, unable INTEGER NOT NULL
) STRICT;

-- name: failure
-- An attempt at a query that failed and ended nothing. `failed` is whether its model was at fault, `eflops` what its
-- search cost by its trace (0 if nothing ran, NULL if its model is not known, or has had several versions).
CREATE TABLE Failure (
    query_id TEXT NOT NULL, part INTEGER NOT NULL, off INTEGER NOT NULL, early INTEGER NOT NULL, ts INTEGER NOT NULL,
    attempt INTEGER NOT NULL, seq INTEGER NOT NULL, action TEXT NOT NULL, failed INTEGER NOT NULL, eflops REAL
) STRICT;

-- name: earlier
-- An attempt that the Reward at an offset says was made before.
CREATE TABLE Earlier (
    query_id TEXT NOT NULL, off INTEGER NOT NULL, attempt INTEGER NOT NULL, seq INTEGER NOT NULL, action TEXT NOT NULL,
    eflops REAL NOT NULL
) STRICT;

-- name: answer
-- How a query ended. `said` is a digest without the measured seconds, which differ whenever a search is run;
-- `path_score` the mean score of the drafts on its path. `extracted` says whether an answer was found in its text,
-- `number` which, where it is a plain whole number. `factor` is the price factor that its search began with, `prices`
-- those of its tokens in USD, as text; NULL for one that never began. `fault` says whether it has no text of its own because something failed, `failed` whether that
-- was its model, and `excused` whether the model was blamed for a refusal though no probe failed; `forgotten` whether the
-- numbers of its model are not known, or compaction may have removed them.
CREATE TABLE Answer (
    query_id TEXT NOT NULL, part INTEGER NOT NULL, off INTEGER NOT NULL, early INTEGER NOT NULL, ts INTEGER NOT NULL,
    said BLOB NOT NULL, status TEXT NOT NULL, service TEXT NOT NULL, action TEXT, seq INTEGER, text INTEGER NOT NULL,
    extracted INTEGER NOT NULL, number INTEGER, score REAL, path_score REAL, factor REAL, fault INTEGER NOT NULL,
    failed INTEGER NOT NULL, excused INTEGER NOT NULL, forgotten INTEGER NOT NULL, prices TEXT, attempt INTEGER NOT NULL
) STRICT;

-- name: worked
-- What the search of the Answer at a partition and offset costs by its trace, under one version of its model.
CREATE TABLE Worked (
    part INTEGER NOT NULL, off INTEGER NOT NULL,
    eflops REAL NOT NULL, prefill_eflops REAL NOT NULL, decoding_eflops REAL NOT NULL, verifier_eflops REAL NOT NULL,
    compute_flops REAL NOT NULL, memory_bytes REAL NOT NULL, intensity REAL NOT NULL, factor REAL NOT NULL
) STRICT;

-- name: reward
-- The terms of a query's reward. `scalar` is what its terms make of its objective, `reward` what it says of that;
-- `score` is what the learner takes for it, which is correctness where the Answer has none (`unscored`) or not all models
-- have one verifier (`verified`), and `own_score` what it says itself; of `cost_only`
-- only the cost is learned, and of one whose model `failed` all but the cost; `closed_early` says that its feedback was not
-- awaited to the end. `graded` is whether the aggregator compared it with a reference, `boxed` whether it did so with the last box alone, by
-- the default grader; `missing` whether it says why a term could not be worked out. `paid` is the logarithm of the stated price, whose parts follow.
CREATE TABLE Reward (
    query_id TEXT NOT NULL, part INTEGER NOT NULL, off INTEGER NOT NULL, early INTEGER NOT NULL, ts INTEGER NOT NULL,
    whole BLOB NOT NULL, kind TEXT NOT NULL, seq INTEGER NOT NULL, action TEXT NOT NULL, status TEXT NOT NULL,
    correct REAL, score REAL, own_score REAL, log_cost REAL, objective BLOB NOT NULL, reward REAL, scalar REAL, graded_by TEXT NOT NULL,
    graded INTEGER NOT NULL, boxed INTEGER NOT NULL, missing INTEGER NOT NULL, learn INTEGER NOT NULL, bounded INTEGER NOT NULL,
    unscored INTEGER NOT NULL, cost_only INTEGER NOT NULL, closed_early INTEGER NOT NULL, failed INTEGER NOT NULL,
    verified TEXT NOT NULL, priced INTEGER NOT NULL, paid REAL,
    eflops REAL, prefill_eflops REAL, decoding_eflops REAL, verifier_eflops REAL,
    compute_flops REAL, memory_bytes REAL, intensity REAL, factor REAL, attempt INTEGER NOT NULL
) STRICT;

-- name: feedback
-- A client's grade of an Answer. `learn` is whether its source may teach.
CREATE TABLE Feedback (
    query_id TEXT NOT NULL, part INTEGER NOT NULL, off INTEGER NOT NULL, early INTEGER NOT NULL, ts INTEGER NOT NULL,
    grade REAL NOT NULL, graded_by TEXT NOT NULL, learn INTEGER NOT NULL
) STRICT;

-- name: row
-- The newest row of an attempt at a query in the learner's log, `name` its key. `f_off` is the offset of the
-- AttemptFailed that ended it; -1 if none did.
CREATE TABLE Row (
    query_id TEXT NOT NULL, part INTEGER NOT NULL, off INTEGER NOT NULL, early INTEGER NOT NULL, ts INTEGER NOT NULL,
    seq INTEGER NOT NULL, clock INTEGER NOT NULL, action TEXT NOT NULL, objective BLOB NOT NULL,
    q_part INTEGER NOT NULL, q_off INTEGER NOT NULL, c_off INTEGER NOT NULL, appended_ms INTEGER NOT NULL,
    decision BLOB NOT NULL, vector BLOB NOT NULL, stage TEXT NOT NULL, weight INTEGER NOT NULL,
    learned INTEGER NOT NULL, corrected INTEGER NOT NULL, ended INTEGER NOT NULL, kinds TEXT NOT NULL,
    r_off INTEGER NOT NULL, correct REAL, score REAL NOT NULL, log_cost REAL NOT NULL, factor REAL NOT NULL,
    attempt INTEGER NOT NULL, f_off INTEGER NOT NULL, name TEXT PRIMARY KEY
) STRICT;

-- name: join_row
-- The aggregator's row of a query.
CREATE TABLE JoinRow (
    query_id TEXT PRIMARY KEY, part INTEGER NOT NULL, off INTEGER NOT NULL, early INTEGER NOT NULL, ts INTEGER NOT NULL
) STRICT;

-- name: letter
-- A record that was given up.
CREATE TABLE Letter (
    topic TEXT, part INTEGER, off INTEGER, error TEXT NOT NULL, query_id TEXT, PRIMARY KEY (topic, part, off)
) STRICT;

-- name: embedded
-- The offset of the newest Query that had become a Context by the first capture, by partition.
CREATE TABLE Embedded (part INTEGER PRIMARY KEY, off INTEGER NOT NULL) STRICT;

-- name: held
-- The offsets that a partition of the queries or of the feedback holds.
CREATE TABLE Held (
    topic TEXT, part INTEGER, "begin" INTEGER NOT NULL, "end" INTEGER NOT NULL, PRIMARY KEY (topic, part)
) STRICT;

-- name: chunk
-- A raw record of a snapshot of the policy.
CREATE TABLE Chunk (key BLOB PRIMARY KEY, value BLOB NOT NULL) STRICT;

-- name: version
-- A snapshot of the policy that is kept, and what is wrong with its records.
CREATE TABLE Version (version INTEGER NOT NULL, fault TEXT) STRICT;
