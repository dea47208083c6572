-- The tables of facts that `reading.py` keeps from each record, and that `timeline.sql` and `checks.sql` read.
--
-- `part`, `off` and `ts` are the partition, offset and append time (ms since the epoch). `early` says that the record
-- is before the end offsets of the first capture (see `run.py`). Columns of type BLOB, such as `whole`, are digests,
-- which are equal for equal content. A record whose fields have types other than these was not written by the product
-- and leaves no fact. If a service may send a table's records to the dead-letter topic, the table gets one more column,
-- `error`, with the reason (`checks.py`).

-- name: query
-- A question. `query_id` is NULL if the record could not be read.
CREATE TABLE Query (
    query_id TEXT, part INTEGER NOT NULL, off INTEGER NOT NULL, early INTEGER NOT NULL, ts INTEGER NOT NULL,
    asked BLOB, timeout_ms INTEGER, wait_ms INTEGER
) STRICT;

-- name: context
-- A question with its embedding. `q_part` and `q_off` are its Query's partition and offset.
CREATE TABLE Context (
    query_id TEXT NOT NULL, part INTEGER NOT NULL, off INTEGER NOT NULL, early INTEGER NOT NULL, ts INTEGER NOT NULL,
    q_part INTEGER NOT NULL, q_off INTEGER NOT NULL, vector BLOB NOT NULL
) STRICT;

-- name: decision
-- An action chosen for a query. `gold` is the reference if that is a plain whole number. `unable` says whether the
-- action lacks something that the query requires.
CREATE TABLE Decision (
    query_id TEXT NOT NULL, part INTEGER NOT NULL, off INTEGER NOT NULL, early INTEGER NOT NULL, ts INTEGER NOT NULL,
    whole BLOB NOT NULL, seq INTEGER NOT NULL, action TEXT NOT NULL, objective BLOB NOT NULL, version INTEGER NOT NULL,
    q_part INTEGER NOT NULL, q_off INTEGER NOT NULL, asked BLOB NOT NULL, gold INTEGER, appended_ms INTEGER NOT NULL,
    learn INTEGER NOT NULL, timeout_ms INTEGER, wait_ms INTEGER, factor REAL NOT NULL, verified TEXT NOT NULL,
    prices TEXT NOT NULL, attempt INTEGER NOT NULL, unable INTEGER NOT NULL
) STRICT;

-- name: failure
-- A failed attempt that did not end its query. `failed` says whether the model was at fault. `eflops` is the cost of
-- the search according to its trace: 0 if nothing ran, NULL if the model is unknown or has had several versions.
CREATE TABLE Failure (
    query_id TEXT NOT NULL, part INTEGER NOT NULL, off INTEGER NOT NULL, early INTEGER NOT NULL, ts INTEGER NOT NULL,
    attempt INTEGER NOT NULL, seq INTEGER NOT NULL, action TEXT NOT NULL, failed INTEGER NOT NULL, eflops REAL
) STRICT;

-- name: earlier
-- An earlier attempt, according to the Reward at an offset.
CREATE TABLE Earlier (
    query_id TEXT NOT NULL, off INTEGER NOT NULL, attempt INTEGER NOT NULL, seq INTEGER NOT NULL, action TEXT NOT NULL,
    eflops REAL NOT NULL
) STRICT;

-- name: answer
-- How a query ended. `said` is a digest without the measured seconds, which differ each time a search is run.
-- `path_score` is the mean score of the drafts on the path. `extracted` says whether an answer was found in the text,
-- and `number` is that answer if it is a plain whole number. `factor` is the price factor when the search began, and
-- `prices` are the prices of its tokens in USD, as text; both are NULL if no search began. `fault` says whether the
-- Answer has no text of its own because something failed, `failed` whether the model failed, and `excused` whether the
-- model was blamed for a refusal although no probe failed. `forgotten` says whether the model's numbers are unknown or
-- may have been removed by compaction.
CREATE TABLE Answer (
    query_id TEXT NOT NULL, part INTEGER NOT NULL, off INTEGER NOT NULL, early INTEGER NOT NULL, ts INTEGER NOT NULL,
    said BLOB NOT NULL, status TEXT NOT NULL, service TEXT NOT NULL, action TEXT, seq INTEGER, text INTEGER NOT NULL,
    extracted INTEGER NOT NULL, number INTEGER, score REAL, path_score REAL, factor REAL, fault INTEGER NOT NULL,
    failed INTEGER NOT NULL, excused INTEGER NOT NULL, forgotten INTEGER NOT NULL, prices TEXT, attempt INTEGER NOT NULL
) STRICT;

-- name: worked
-- The cost of a search according to the trace of the Answer at a partition and offset, for one version of its model.
CREATE TABLE Worked (
    part INTEGER NOT NULL, off INTEGER NOT NULL,
    eflops REAL NOT NULL, prefill_eflops REAL NOT NULL, decoding_eflops REAL NOT NULL, verifier_eflops REAL NOT NULL,
    compute_flops REAL NOT NULL, memory_bytes REAL NOT NULL, intensity REAL NOT NULL, factor REAL NOT NULL
) STRICT;

-- name: reward
-- The terms of a query's reward. `scalar` is the reward recomputed from the terms and the objective, `reward` the one
-- stated. `score` is the score that the learner uses, which is correctness if the Answer has no score (`unscored`) or
-- if the models do not all have the same verifier (`verified`); `own_score` is the score stated. If `cost_only`, only
-- the cost is learned; if the model `failed`, everything but the cost is. `closed_early` says that the wait for
-- feedback was cut short. `graded` says whether the aggregator compared the Answer with a reference, `boxed` whether it
-- compared only the last box, by the default grader, and `missing` whether the Reward says why a term could not be
-- computed. `paid` is the logarithm of the stated price, whose parts follow.
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
-- A client's grade of an Answer. `learn` says whether its source may teach.
CREATE TABLE Feedback (
    query_id TEXT NOT NULL, part INTEGER NOT NULL, off INTEGER NOT NULL, early INTEGER NOT NULL, ts INTEGER NOT NULL,
    grade REAL NOT NULL, graded_by TEXT NOT NULL, learn INTEGER NOT NULL
) STRICT;

-- name: row
-- The newest row in the learner's log for an attempt at a query. `name` is the row's key. `f_off` is the offset of the
-- AttemptFailed that ended the attempt, or -1.
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
-- The aggregator's row for a query.
CREATE TABLE JoinRow (
    query_id TEXT PRIMARY KEY, part INTEGER NOT NULL, off INTEGER NOT NULL, early INTEGER NOT NULL, ts INTEGER NOT NULL
) STRICT;

-- name: letter
-- A record that was sent to the dead-letter topic.
CREATE TABLE Letter (
    topic TEXT, part INTEGER, off INTEGER, error TEXT NOT NULL, query_id TEXT, PRIMARY KEY (topic, part, off)
) STRICT;

-- name: embedded
-- By partition, the offset of the newest Query that had a Context by the first capture.
CREATE TABLE Embedded (part INTEGER PRIMARY KEY, off INTEGER NOT NULL) STRICT;

-- name: held
-- The range of offsets in a partition of the query or feedback topic.
CREATE TABLE Held (
    topic TEXT, part INTEGER, "begin" INTEGER NOT NULL, "end" INTEGER NOT NULL, PRIMARY KEY (topic, part)
) STRICT;

-- name: chunk
-- A raw record from a snapshot of the policy.
CREATE TABLE Chunk (key BLOB PRIMARY KEY, value BLOB NOT NULL) STRICT;

-- name: version
-- A policy snapshot that is still kept, and what is wrong with its records; NULL if nothing is.
CREATE TABLE Version (version INTEGER NOT NULL, fault TEXT) STRICT;
