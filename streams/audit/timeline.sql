-- Turns a deployment's records into one line per query, with its state and the stage that its Rewards imply for the
-- learner's row.
--
-- Each statement is named by the comment above it; `checks.py` runs them in this order. Records that went to the
-- dead-letter topic have an `error` and are ignored, with two exceptions: Queries, which are the question whether or
-- not a service could read them, and records that were handled anyway, as later records show. If a record is repeated,
-- only the first is used. Timeline columns such as `decision` are rowids.

-- name: by_query
CREATE INDEX by_id_Query ON Query (query_id, part, off);

-- name: by_context
CREATE INDEX by_id_Context ON Context (query_id, part, off);

-- name: by_decision
CREATE INDEX by_id_Decision ON Decision (query_id, part, off);

-- name: by_answer
CREATE INDEX by_id_Answer ON Answer (query_id, part, off);

-- name: by_reward
CREATE INDEX by_id_Reward ON Reward (query_id, part, off);

-- name: by_feedback
CREATE INDEX by_id_Feedback ON Feedback (query_id, part, off);

-- name: by_failure
CREATE INDEX by_id_Failure ON Failure (query_id, attempt, off);

-- name: by_row
CREATE INDEX by_id_Row ON Row (query_id, attempt);

-- name: by_place
CREATE INDEX by_place_Worked ON Worked (part, off);

-- name: timeline
CREATE TABLE Timeline AS
WITH Known AS (
    SELECT query_id FROM Query WHERE query_id IS NOT NULL
    UNION SELECT query_id FROM Context
    UNION SELECT query_id FROM Decision
    UNION SELECT query_id FROM Answer
    UNION SELECT query_id FROM Reward
    UNION SELECT query_id FROM Row
), Id AS (
    -- The attempt that ended the query, according to its Reward or else its Answer. Without either, or without that
    -- attempt's records, the last attempt is used.
    SELECT query_id, coalesce(
        (SELECT r.attempt FROM Reward r WHERE r.query_id = Known.query_id AND r.error IS NULL ORDER BY r.off LIMIT 1),
        (SELECT a.attempt FROM Answer a WHERE a.query_id = Known.query_id AND a.error IS NULL AND a.seq IS NOT NULL
            ORDER BY a.part, a.off LIMIT 1)
    ) AS attempt FROM Known
), Found AS (
    SELECT
        query_id,
        -- A Decision that went to the dead-letter topic may have been handled after all, if the process that sent the
        -- dead letter died before committing and the next one read the Decision again. In that case it is used.
        coalesce((SELECT d.rowid FROM Decision d WHERE d.query_id = Id.query_id AND d.attempt = Id.attempt AND (
            d.error IS NULL OR d.error <> 'MisplacedRecord' AND EXISTS (
                SELECT 1 FROM Reward r WHERE r.query_id = d.query_id AND r.error IS NULL AND r.seq = d.seq))
            ORDER BY d.error IS NOT NULL, d.part, d.off LIMIT 1),
        (SELECT d.rowid FROM Decision d WHERE d.query_id = Id.query_id AND (
            d.error IS NULL OR d.error <> 'MisplacedRecord' AND EXISTS (
                SELECT 1 FROM Reward r WHERE r.query_id = d.query_id AND r.error IS NULL AND r.seq = d.seq))
            ORDER BY d.error IS NOT NULL, d.attempt DESC, d.part, d.off LIMIT 1)) AS decision,
        -- The same holds for an Answer, unless another Answer came before the Reward.
        (SELECT a.rowid FROM Answer a WHERE a.query_id = Id.query_id AND (
            a.error IS NULL OR a.status <> 'expired' AND EXISTS (
                SELECT 1 FROM Reward r WHERE r.query_id = a.query_id AND r.error IS NULL AND r.status = a.status))
            ORDER BY a.error IS NOT NULL AND NOT EXISTS (
                SELECT 1 FROM Reward r WHERE r.query_id = a.query_id AND r.error IS NULL AND r.status = a.status
                AND r.ts < (SELECT min(b.ts) FROM Answer b WHERE b.query_id = a.query_id AND b.error IS NULL)
            ), a.part, a.off LIMIT 1) AS answer,
        (SELECT r.rowid FROM Reward r WHERE r.query_id = Id.query_id AND r.error IS NULL
            AND r.kind IN ('final', 'correction', 'default') ORDER BY r.part, r.off LIMIT 1) AS closing,
        coalesce((SELECT l.rowid FROM Row l WHERE l.query_id = Id.query_id AND l.attempt = Id.attempt),
            (SELECT l.rowid FROM Row l WHERE l.query_id = Id.query_id ORDER BY l.attempt DESC LIMIT 1)) AS learner,
        -- None of the query's records was written before this time. Without a Query, Decision or row it is estimated,
        -- because no query waits longer than sixty days for its Answer and its feedback.
        coalesce(
            (SELECT min(ts) FROM (
                SELECT q.ts FROM Query q WHERE q.query_id = Id.query_id
                UNION ALL SELECT iif(d.appended_ms, d.appended_ms, d.ts) FROM Decision d
                    WHERE d.query_id = Id.query_id AND d.error IS NULL
                UNION ALL SELECT iif(l.appended_ms, l.appended_ms, l.ts) FROM Row l WHERE l.query_id = Id.query_id
            )),
            (SELECT min(ts) FROM (
                SELECT c.ts FROM Context c WHERE c.query_id = Id.query_id AND c.error IS NULL
                UNION ALL SELECT a.ts FROM Answer a WHERE a.query_id = Id.query_id AND a.error IS NULL
                UNION ALL SELECT r.ts FROM Reward r WHERE r.query_id = Id.query_id AND r.error IS NULL
                UNION ALL SELECT j.ts FROM JoinRow j WHERE j.query_id = Id.query_id
            )) - 60 * 24 * 3600000,
            0
        ) AS since_ms
    FROM Id
)
-- The Query that was decided, or else the first one. Other Queries with the same id are duplicates.
SELECT Found.*, CASE
    WHEN decision IS NOT NULL OR learner IS NOT NULL THEN (
        SELECT q.rowid FROM Query q
        WHERE q.query_id = Found.query_id
        AND q.part = coalesce((SELECT q_part FROM Decision d WHERE d.rowid = decision),
            (SELECT q_part FROM Row l WHERE l.rowid = learner))
        AND q.off = coalesce((SELECT q_off FROM Decision d WHERE d.rowid = decision),
            (SELECT q_off FROM Row l WHERE l.rowid = learner)))
    ELSE (SELECT q.rowid FROM Query q WHERE q.query_id = Found.query_id ORDER BY q.part, q.off LIMIT 1)
END AS query
FROM Found;

-- name: timeline_by_id
CREATE UNIQUE INDEX by_id_Timeline ON Timeline (query_id);

-- name: state
CREATE TABLE State AS
WITH Fact AS (
    SELECT
        t.*,
        a.status, a.service, a.ts AS answered_ms, l.stage, l.f_off, c.status AS closing_status,
        CASE WHEN t.query IS NOT NULL THEN q.ts WHEN t.decision IS NOT NULL THEN d.appended_ms ELSE t.since_ms END
            AS asked_ms,
        coalesce(iif(t.decision IS NULL, q.timeout_ms, d.timeout_ms), :timeout_ms) AS timeout_ms,
        coalesce(
            iif(t.decision IS NULL, q.wait_ms, d.wait_ms), iif(d.verified = 'some', :mixed_wait_ms, :wait_ms)
        ) AS wait_ms,
        iif(t.learner IS NOT NULL, l.learned >= 0,
            c.learn AND (c.failed OR c.score IS NOT NULL AND c.log_cost IS NOT NULL AND NOT c.cost_only)) AS learned,
        coalesce(c.failed, 0) AS failed,
        CASE WHEN NOT c.learn THEN 'learn: false' WHEN l.weight = 0 THEN 'its tenant had taught enough'
            WHEN c.bounded THEN 'cut by its client' WHEN c.cost_only THEN 'neither scored nor graded' END AS refused,
        EXISTS (SELECT 1 FROM Reward x WHERE x.query_id = t.query_id AND x.error IS NULL) AS rewarded,
        EXISTS (SELECT 1 FROM Context x WHERE x.query_id = t.query_id AND x.error IS NULL) AS embedded,
        (SELECT x.error FROM Query x WHERE x.query_id = t.query_id AND x.error IS NOT NULL LIMIT 1) AS no_query,
        (SELECT x.error FROM Context x WHERE x.query_id = t.query_id AND x.error IS NOT NULL LIMIT 1) AS no_context,
        (SELECT x.error FROM Decision x WHERE x.query_id = t.query_id AND x.error IS NOT NULL LIMIT 1) AS no_decision,
        (SELECT x.error FROM Answer x WHERE x.query_id = t.query_id AND x.error IS NOT NULL LIMIT 1) AS no_answer,
        (SELECT x.error FROM Reward x WHERE x.query_id = t.query_id AND x.error IS NOT NULL LIMIT 1) AS no_reward
    FROM Timeline t
    LEFT JOIN Query q ON q.rowid = t.query
    LEFT JOIN Decision d ON d.rowid = t.decision
    LEFT JOIN Answer a ON a.rowid = t.answer
    LEFT JOIN Reward c ON c.rowid = t.closing
    LEFT JOIN Row l ON l.rowid = t.learner
), Ending AS (
    -- `waits_for` says what a pending query is waiting for. `ending` says how a query ended, regardless of whether
    -- anything was learned from it.
    SELECT *, CASE
        WHEN answer IS NULL THEN CASE
            WHEN no_answer IS NOT NULL THEN NULL
            WHEN decision IS NULL AND learner IS NULL AND coalesce(no_context, no_query) IS NOT NULL THEN NULL
            WHEN closing IS NOT NULL OR stage IN ('closed', 'priced', 'failed', 'abandoned') AND f_off < 0 THEN NULL
            WHEN decision IS NOT NULL THEN 'executor'
            WHEN embedded OR learner IS NOT NULL THEN 'decider'
            ELSE 'embedder' END
        WHEN status = 'rejected' THEN NULL
        WHEN closing IS NULL THEN CASE
            WHEN decision IS NULL AND learner IS NULL AND NOT rewarded THEN NULL
            WHEN coalesce(no_decision, no_reward) IS NOT NULL THEN NULL
            WHEN rewarded THEN 'feedback'
            ELSE 'aggregator' END
        WHEN stage NOT IN ('closed', 'priced', 'failed', 'abandoned') AND no_reward IS NULL THEN 'learner'
    END AS waits_for, CASE
        WHEN answer IS NULL AND no_answer IS NOT NULL THEN 'lost'
        WHEN answer IS NULL AND decision IS NULL AND learner IS NULL AND coalesce(no_context, no_query) IS NOT NULL
            THEN 'rejected'
        WHEN answer IS NULL THEN 'closed'
        WHEN status = 'rejected' THEN 'rejected'
        -- Nothing was chosen, so there is nothing to learn, or the outcome could not be learned.
        WHEN closing IS NULL OR stage NOT IN ('closed', 'priced', 'failed', 'abandoned') THEN 'lost'
        ELSE 'closed'
    END AS ending
    FROM Fact
), Named AS (
    SELECT *, CASE
        WHEN waits_for IS NOT NULL THEN 'pending'
        WHEN ending = 'rejected' THEN 'rejected'
        WHEN iif(answer IS NULL, iif(ending = 'closed', closing_status, NULL), status) = 'expired' THEN 'expired'
        WHEN ending = 'closed' AND learned THEN 'answered and learned'
        ELSE 'answered, not learnable'
    END AS state FROM Ending
)
-- answered and learned (why)       the query has an Answer, and its row entered the policy and is closed; if the model
--                                  gave no text, it was learned as wrong and without its cost
-- answered, not learnable (why)    the query has an Answer, but no score, no price, or learn: false; or it was cut off
--                                  by the client's own bounds, or neither scored nor graded, so only its cost was
--                                  learned
-- expired                          the deadline passed before an Answer arrived
-- rejected (why)                   the query could not be read, or nothing could be chosen for it
-- pending                          anything else, with what the query is waiting for, its age and its deadline
SELECT
    query_id,
    state,
    CASE state
        WHEN 'rejected' THEN coalesce(iif(answer IS NULL, no_context, no_query), no_query, no_context, 'by the ' || service)
        WHEN 'expired' THEN iif(ending = 'lost', coalesce(no_answer, no_decision, no_reward), NULL)
        WHEN 'answered and learned' THEN iif(failed, 'its model failed', NULL)
        WHEN 'answered, not learnable' THEN CASE ending
            WHEN 'lost' THEN coalesce(no_answer, no_decision, no_reward, status)
            ELSE coalesce(refused, status, closing_status, 'its Answer is no longer kept') END
    END AS why,
    waits_for,
    asked_ms,
    asked_ms + timeout_ms AS answer_due_ms,
    answered_ms + wait_ms AS feedback_due_ms,
    iif(waits_for = 'feedback', answered_ms + wait_ms, asked_ms + timeout_ms) AS deadline_ms
FROM Named;

-- name: state_by_id
CREATE UNIQUE INDEX by_id_State ON State (query_id);

-- name: untold
-- Rewards stating that nobody graded an Answer in time, although feedback was awaited. If the wait was cut short, only
-- feedback before the Answer was in time.
CREATE TABLE Untold AS
SELECT r.query_id, r.ts, a.ts AS answered_ms, a.part AS answer_part, s.feedback_due_ms - a.ts AS wait_ms,
    iif(r.closed_early, a.ts, s.feedback_due_ms) AS feedback_due_ms
FROM Reward r JOIN Timeline t USING (query_id) JOIN Answer a ON a.rowid = t.answer JOIN State s USING (query_id)
WHERE r.early AND r.error IS NULL AND r.kind = 'default' AND a.error IS NULL AND a.status = r.status
-- Otherwise the reward is closed at once.
AND a.status <> 'cancelled' AND NOT r.bounded AND (r.own_score IS NOT NULL OR r.unscored) AND s.feedback_due_ms > a.ts;

-- name: applied
-- A query's Rewards, in log order, up to the last one that was applied according to its row. The first one that can be
-- learned from, or that closes the query, decides the stage; if it is provisional, the closing one may correct it.
CREATE TABLE Applied AS
WITH Own AS (
    SELECT
        r.rowid AS id, r.query_id, l.seq, r.off, r.kind, iif(r.learn, r.correct, NULL) AS correct,
        r.cost_only, r.failed, l.weight, l.r_off, l.stage AS row_stage,
        r.kind IN ('final', 'correction', 'default') AS closes,
        r.learn AND (r.failed OR (r.score IS NOT NULL OR r.cost_only) AND r.log_cost IS NOT NULL) AS learnable
    FROM Row l JOIN Reward r ON r.query_id = l.query_id AND r.seq = l.seq AND r.action = l.action
    -- A Reward that went to the dead-letter topic is read again if the process ended before committing, and may then be
    -- applied. The row says so, unless it could refer to a different Reward.
    WHERE r.error IS NULL OR instr(l.kinds, r.kind) AND NOT EXISTS (
        SELECT 1 FROM Reward x WHERE x.query_id = r.query_id AND x.kind = r.kind AND x.seq = r.seq
        AND x.action = r.action AND x.error IS NULL AND x.off <= l.r_off)
), One AS (
    SELECT query_id, seq, min(off) AS off, id, kind, correct, CASE
        -- A tenant that has taught enough teaches nothing more.
        WHEN NOT (learnable AND weight) THEN 'abandoned' WHEN failed THEN 'failed' WHEN cost_only THEN 'priced' WHEN closes THEN 'closed' ELSE 'learned'
    END AS stage
    FROM Own WHERE off <= r_off AND (closes OR learnable) GROUP BY query_id, seq
), Two AS (
    SELECT o.query_id, o.seq, min(o.off) AS off, o.kind, o.correct
    FROM Own o JOIN One USING (query_id, seq)
    WHERE One.stage = 'learned' AND o.closes AND o.off > One.off AND o.off <= o.r_off GROUP BY o.query_id, o.seq
)
SELECT
    l.query_id, l.seq,
    CASE
        -- The attempt was ended not by a Reward of its own but by its AttemptFailed, or by a Reward of an earlier
        -- attempt.
        WHEN f.query_id IS NOT NULL THEN iif(f.failed AND l.weight AND l.stage = 'failed', 'failed', 'abandoned')
        WHEN l.attempt > 1 AND EXISTS (
            SELECT 1 FROM Reward r WHERE r.query_id = l.query_id AND r.off = l.r_off AND r.attempt < l.attempt
        ) THEN 'abandoned'
        -- A deployment may drop an ungraded answer.
        WHEN l.stage = 'abandoned' AND One.kind = 'default' THEN 'abandoned'
        WHEN Two.kind IS NOT NULL THEN 'closed'
        ELSE coalesce(One.stage, 'pending')
    END AS stage,
    coalesce(One.kind || ',' || Two.kind, One.kind, '') AS kinds,
    iif(One.stage IN ('learned', 'closed'), One.id, NULL) AS entered,
    iif(f.query_id IS NOT NULL, f.failed AND l.stage = 'failed', 0)
    + iif(l.stage = 'abandoned' AND One.kind = 'default', 0,
        coalesce(One.stage IN ('learned', 'closed', 'failed'), 0) + (Two.correct IS NOT NULL)) AS updates,
    coalesce(One.correct, Two.correct) AS correct
FROM Row l LEFT JOIN One USING (query_id, seq) LEFT JOIN Two USING (query_id, seq)
LEFT JOIN Failure f ON f.query_id = l.query_id AND f.attempt = l.attempt AND f.off = l.f_off;

-- name: applied_by_id
CREATE UNIQUE INDEX by_id_Applied ON Applied (query_id, seq);

-- name: change
-- Decisions and policy changes, in a common order.
CREATE TABLE Change AS
SELECT seq, query_id, 'decide' AS does, (
    SELECT version FROM Decision d WHERE d.query_id = Row.query_id AND d.error IS NULL AND d.whole = Row.decision LIMIT 1
) AS version FROM Row
UNION ALL SELECT learned, query_id, 'learn', NULL FROM Row WHERE learned >= 0
UNION ALL SELECT corrected, query_id, 'learn', NULL FROM Row WHERE corrected >= 0
UNION ALL SELECT ended, query_id, 'end', NULL FROM Row WHERE ended >= 0;

-- name: change_by_seq
CREATE INDEX by_seq_Change ON Change (seq);

-- name: missing_row
-- Queries that were decided but have no row in the learner's log, although no snapshot allowed the row to leave and no
-- operator has deleted the log since.
CREATE TABLE MissingRow AS
SELECT t.query_id FROM Timeline t JOIN Decision d ON d.rowid = t.decision
WHERE d.early AND t.learner IS NULL
AND (
    EXISTS (
        SELECT 1 FROM Held h
        WHERE h.topic = :query_topic AND h.part = d.q_part AND d.q_off >= h.begin AND d.q_off < h."end"
    )
    OR EXISTS (SELECT 1 FROM Context c WHERE c.query_id = t.query_id AND c.error IS NULL)
)
AND NOT ended(t.query_id) AND NOT before_reset(d.part, d.off);
