-- The invariants. Each statement is one check, named by the comment above it, and returns the discrepancies: a query_id
-- or other subject, and a description. The tables are those in `facts.sql` and `timeline.sql`.
--
-- A record before the end offsets of the first capture (`early`) must agree with the records before those of the
-- second. A missing record is a discrepancy only if a later record of the same service proves that the service has
-- moved past it (`Embedded`, :contexts_done, the newest row, :rewards_done): the embedder has finished with every
-- record that is :window records before its newest Context, and the decider with every record that is :batch records
-- before its newest row. A record deleted by retention is not considered missing, but every record appended after
-- :kept_… must be there.

-- name: query_passed_over
SELECT q.query_id, 'its Query was passed over: no Context, no Answer, no dead letter'
FROM Query q JOIN Embedded e ON e.part = q.part JOIN Timeline t USING (query_id)
WHERE q.early AND q.off + :window <= e.off AND q.ts > :kept_context AND q.error IS NULL AND t.answer IS NULL
AND NOT EXISTS (
    SELECT 1 FROM Context c WHERE c.query_id = q.query_id AND c.q_part = q.part AND c.q_off = q.off
);

-- name: unreadable_query_passed_over
SELECT :query_topic || '/' || q.part || '/' || q.off, 'an unreadable Query was passed over without a dead letter'
FROM Query q JOIN Embedded e ON e.part = q.part
WHERE q.query_id IS NULL AND q.early AND q.off + :window <= e.off AND q.error IS NULL;

-- name: context_passed_over
SELECT c.query_id, 'its Context was passed over: no Decision, no Answer, no dead letter'
FROM Context c JOIN Timeline t USING (query_id) LEFT JOIN Row l ON l.rowid = t.learner
LEFT JOIN Decision d ON d.rowid = t.decision
WHERE c.early AND c.error IS NULL AND c.off + :batch <= :contexts_done AND t.answer IS NULL
AND (t.decision IS NULL OR NOT before_reset(d.part, d.off))
AND (l.q_part IS NOT c.q_part OR l.q_off IS NOT c.q_off);

-- name: decisions_differ
SELECT query_id, 'two Decisions that differ'
FROM Decision WHERE error IS NULL GROUP BY query_id, attempt HAVING count(*) > 1 AND count(DISTINCT whole) > 1;

-- name: attempt_passed_over
SELECT f.query_id, 'its attempt ' || f.attempt || ' failed and was passed over: no further Decision, no Answer'
FROM Failure f JOIN Timeline t USING (query_id)
WHERE f.early AND f.error IS NULL AND f.off + :batch <= :failures_done AND t.answer IS NULL
AND t.since_ms > max(:kept_answer, :kept_decision)
AND NOT EXISTS (SELECT 1 FROM Decision d WHERE d.query_id = f.query_id AND d.attempt > f.attempt);

-- name: decision_without_failure
SELECT d.query_id, 'attempt ' || d.attempt || ' was decided, but attempt ' || (d.attempt - 1) || ' did not fail'
FROM Decision d
WHERE d.early AND d.error IS NULL AND d.attempt > 1 AND d.appended_ms > :kept_failure
AND NOT EXISTS (SELECT 1 FROM Failure f WHERE f.query_id = d.query_id AND f.attempt = d.attempt - 1);

-- name: decision_for_no_query
SELECT t.query_id, 'its Decision names a Query at ' || d.q_part || '/' || d.q_off || ', where there is another record'
FROM Timeline t JOIN Decision d ON d.rowid = t.decision JOIN Held h ON h.topic = :query_topic AND h.part = d.q_part
WHERE d.early AND t.query IS NULL AND d.q_off >= h.begin AND d.q_off < h."end";

-- name: decision_for_another_question
SELECT t.query_id, 'the question in its Decision is not that of its Query'
FROM Timeline t JOIN Decision d ON d.rowid = t.decision JOIN Query q ON q.rowid = t.query
WHERE d.early AND q.asked IS NOT NULL AND q.asked <> d.asked;

-- name: decision_unable
SELECT t.query_id, 'its Decision chose ' || d.action || ', which lacks what the Query requires'
FROM Timeline t JOIN Decision d ON d.rowid = t.decision
WHERE d.early AND d.unable;

-- name: decision_missing
SELECT t.query_id, 'the learner''s row has no Decision'
FROM Timeline t JOIN Row l ON l.rowid = t.learner LEFT JOIN Answer a ON a.rowid = t.answer
WHERE t.decision IS NULL AND l.early AND t.since_ms > :kept_decision
AND NOT EXISTS (SELECT 1 FROM Decision d WHERE d.query_id = t.query_id)
AND (
    -- The newest clock among the existing rows, because the clock restarts after `learner reset`.
    l.clock + :batch <= (SELECT max(clock) FROM Row WHERE early)
    OR (a.early AND a.seq IS NOT NULL)
    OR EXISTS (SELECT 1 FROM Reward r WHERE r.query_id = t.query_id AND r.early AND r.error IS NULL)
);

-- name: answers_differ
-- A search that is run again ends the same way, unless time, an engine or a client ended it.
SELECT DISTINCT o.query_id, 'two Answers with status ' || a.status || ' that differ'
FROM Answer o JOIN Timeline t USING (query_id) JOIN Answer a ON a.rowid = t.answer
WHERE a.early AND o.rowid <> a.rowid AND o.error IS NULL AND o.early
AND o.status = a.status AND o.status IN ('ok', 'unfinished') AND o.service = a.service AND o.said <> a.said;

-- name: expired_early
-- The aggregator writes this Answer after a record appended past the deadline. Only the brokers' clocks matter.
SELECT s.query_id, printf('expired %.1f s after it was asked, before its %.1f s were over; if the settings had less then, audit with that',
    (a.ts - s.asked_ms) / 1e3, (s.answer_due_ms - s.asked_ms) / 1e3)
FROM State s JOIN Timeline t USING (query_id) JOIN Answer a ON a.rowid = t.answer
WHERE a.early AND a.error IS NULL AND a.status = 'expired' AND a.ts + :clocks_ms < s.answer_due_ms;

-- name: answer_score
SELECT t.query_id, 'the Answer''s score is ' || a.score || ', the mean of its path ' || a.path_score
FROM Timeline t JOIN Answer a ON a.rowid = t.answer
WHERE a.early AND a.score IS NOT NULL AND a.path_score IS NOT NULL AND NOT close(a.score, a.path_score);

-- name: answer_without_decision
SELECT t.query_id, 'an Answer without a Decision'
FROM Timeline t JOIN Answer a ON a.rowid = t.answer LEFT JOIN Row l ON l.rowid = t.learner
WHERE a.early AND a.seq IS NOT NULL AND t.decision IS NULL AND NOT coalesce(l.early, 0)
AND NOT EXISTS (SELECT 1 FROM Decision d WHERE d.query_id = t.query_id)
AND min(a.ts, coalesce((SELECT min(q.ts) FROM Query q WHERE q.query_id = t.query_id), a.ts)) > :kept_decision;

-- name: answer_to_another_decision
SELECT t.query_id, CASE
    WHEN a.action <> d.action THEN 'the Answer ran ' || a.action || ', but ' || d.action || ' was decided'
    WHEN a.seq <> d.seq THEN 'the Answer has sequence number ' || a.seq || ', its Decision ' || d.seq
    WHEN a.factor <> d.factor THEN 'the Answer is priced at ' || a.factor || ' per eFLOP, its Decision says ' || d.factor
    ELSE 'the Answer is priced at ' || a.prices || ', its Decision says ' || d.prices
END
FROM Timeline t JOIN Answer a ON a.rowid = t.answer JOIN Decision d ON d.rowid = t.decision
WHERE a.early AND (a.action <> d.action OR a.seq <> d.seq OR a.factor <> d.factor OR a.prices <> d.prices)
-- A Decision that the aggregator sent to the dead-letter topic may still have reached its executor.
AND NOT EXISTS (SELECT 1 FROM Decision o WHERE o.query_id = t.query_id AND o.seq = a.seq AND o.error IS NOT NULL);

-- name: rewards_differ
SELECT query_id, 'two Rewards ' || query_id || '/' || kind || ' that differ'
FROM Reward WHERE error IS NULL GROUP BY query_id, kind HAVING max(early) AND count(*) > 1 AND count(DISTINCT whole) > 1;

-- name: reward_kinds
SELECT query_id, 'Rewards of kinds ' || group_concat(DISTINCT kind)
    || ': expected one, or a provisional and what resolves it'
-- A correction may follow a provisional Reward that the decider has sent to the dead-letter topic. A final Reward
-- follows a provisional one if the row was not written and the Answer was handled again after its Feedback.
FROM Reward WHERE (error IS NULL OR kind = 'provisional') AND early GROUP BY query_id
HAVING max(kind = 'correction') AND NOT max(kind = 'provisional')
OR count(*) > 1 AND (
    count(DISTINCT iif(kind = 'provisional', NULL, kind)) > 1
    OR min(iif(kind = 'final', off, NULL)) < max(iif(kind = 'provisional', off, NULL))
);

-- name: reward_without_decision
SELECT r.query_id, 'Reward ' || r.query_id || '/' || r.kind || ' without a Decision'
FROM Reward r JOIN Timeline t USING (query_id) LEFT JOIN Row l ON l.rowid = t.learner
WHERE r.early AND r.error IS NULL AND t.decision IS NULL AND NOT coalesce(l.early, 0)
AND t.since_ms > :kept_decision;

-- name: reward_of_another_decision
SELECT r.query_id, 'Reward ' || r.query_id || '/' || r.kind || ': ' || CASE
    WHEN r.seq <> d.seq THEN 'seq is ' || r.seq || ', but ' || d.seq || ' was decided'
    WHEN r.action <> d.action THEN 'action is ' || r.action || ', but ' || d.action || ' was decided'
    WHEN r.learn <> d.learn THEN 'learn is ' || r.learn || ', but ' || d.learn || ' was decided'
    WHEN r.verified <> d.verified THEN 'verified is ' || r.verified || ', but ' || d.verified || ' was decided'
    ELSE 'its objective is not the Decision''s'
END
FROM Reward r JOIN Timeline t USING (query_id) JOIN Decision d ON d.rowid = t.decision
WHERE r.early AND r.error IS NULL
AND (
    r.seq <> d.seq OR r.action <> d.action OR r.objective <> d.objective OR r.verified <> d.verified
    OR r.learn <> (d.learn AND NOT EXISTS (
        -- The Feedback used in the Reward may come from a source that is not allowed to teach.
        SELECT 1 FROM Feedback f WHERE f.query_id = r.query_id AND NOT f.learn AND f.grade = r.correct
        AND f.graded_by = r.graded_by AND NOT r.learn
    ))
);

-- name: reward_of_other_attempts
-- A Reward states the cost of every earlier attempt, so it includes the query's whole cost.
SELECT r.query_id, 'Reward ' || r.query_id || '/' || r.kind || ': it ends attempt ' || r.attempt || ', and of those before '
    || iif((SELECT count(*) FROM Earlier e WHERE e.query_id = r.query_id AND e.off = r.off) <> r.attempt - 1,
        'one is missing', 'one is not what failed')
FROM Reward r JOIN Timeline t USING (query_id)
WHERE r.early AND r.error IS NULL AND (
    (SELECT count(*) FROM Earlier e WHERE e.query_id = r.query_id AND e.off = r.off) <> r.attempt - 1
    OR EXISTS (
        SELECT 1 FROM Earlier e WHERE e.query_id = r.query_id AND e.off = r.off
        AND EXISTS (SELECT 1 FROM Failure f WHERE f.query_id = e.query_id AND f.attempt = e.attempt)
        AND NOT EXISTS (
            SELECT 1 FROM Failure f WHERE f.query_id = e.query_id AND f.attempt = e.attempt AND f.seq = e.seq
            AND f.action = e.action AND (f.eflops IS NULL OR close(f.eflops, e.eflops))
        )
    )
);

-- name: reward_without_answer
SELECT r.query_id, 'Reward ' || r.query_id || '/' || r.kind || ' without an Answer'
FROM Reward r JOIN Timeline t USING (query_id)
WHERE r.early AND r.error IS NULL AND t.answer IS NULL AND t.since_ms > :kept_answer
AND (t.decision IS NOT NULL OR t.since_ms <= :kept_decision);

-- name: reward_of_another_answer
-- If a search was cancelled or ended by a fault, only its price is known.
SELECT r.query_id, 'Reward ' || r.query_id || '/' || r.kind || ': ' || iif(r.status <> a.status,
    'status is ' || r.status || ', the Answer''s ' || a.status,
    'score is ' || iif(r.unscored, 'unscored', said(r.own_score)) || ', the Answer''s '
    || said(iif(a.text AND a.status <> 'cancelled' AND NOT a.fault, a.score, NULL)))
FROM Reward r JOIN Timeline t USING (query_id) JOIN Answer a ON a.rowid = t.answer
WHERE r.early AND r.error IS NULL
AND (
    r.status <> a.status
    OR r.own_score IS NOT iif(a.text AND a.status <> 'cancelled' AND NOT a.fault, a.score, NULL)
    OR r.unscored <> (a.text AND a.status <> 'cancelled' AND NOT a.fault AND a.score IS NULL)
);

-- name: blamed_without_probe
-- A model is blamed for a refusal only if it also failed the operator's probe, as stated in the Answer.
SELECT a.query_id, 'the Answer blames its model for a refusal, but no probe failed'
FROM Timeline t JOIN Answer a ON a.rowid = t.answer WHERE a.early AND a.excused;

-- name: reward_fault
SELECT r.query_id, 'Reward ' || r.query_id || '/' || r.kind || ': its model ' || iif(r.failed, 'failed', 'did not fail')
    || ', but the Answer says ' || iif(a.failed, 'that it did', 'nothing of that')
FROM Reward r JOIN Timeline t USING (query_id) JOIN Answer a ON a.rowid = t.answer
WHERE r.early AND r.error IS NULL AND r.status = a.status AND r.failed <> a.failed;

-- name: reward_log_cost
SELECT r.query_id, 'Reward ' || r.query_id || '/' || r.kind || ': log_cost is ' || said(r.log_cost)
    || ', the price''s ' || said(r.eflops)
FROM Reward r JOIN Timeline t USING (query_id)
WHERE r.early AND r.error IS NULL AND t.answer IS NOT NULL
AND (r.priced OR r.log_cost IS NOT NULL) AND NOT close(r.paid, r.log_cost);

-- name: reward_price
SELECT r.query_id, 'Reward ' || r.query_id || '/' || r.kind || ': the price is ' || said(r.eflops)
    || ' eFLOPs, the trace''s ' || said((SELECT w.eflops FROM Worked w WHERE w.part = a.part AND w.off = a.off LIMIT 1))
FROM Reward r JOIN Timeline t USING (query_id) JOIN Answer a ON a.rowid = t.answer
WHERE r.early AND r.error IS NULL AND NOT a.forgotten AND iif(
    r.priced OR r.log_cost IS NOT NULL,
    close(r.paid, r.log_cost) AND NOT EXISTS (
        SELECT 1 FROM Worked w WHERE w.part = a.part AND w.off = a.off
        AND close(w.eflops, r.eflops) AND close(w.prefill_eflops, r.prefill_eflops)
        AND close(w.decoding_eflops, r.decoding_eflops) AND close(w.verifier_eflops, r.verifier_eflops)
        AND close(w.compute_flops, r.compute_flops) AND close(w.memory_bytes, r.memory_bytes)
        AND close(w.intensity, r.intensity) AND close(w.factor, r.factor)
    ),
    EXISTS (SELECT 1 FROM Worked w WHERE w.part = a.part AND w.off = a.off)
);

-- name: reward_grade
-- Checked only if comparing whole numbers is enough to grade the Answer.
SELECT query_id, 'Reward ' || query_id || '/' || kind || ': correct is ' || said(correct)
    || ', but the Answer compared with its reference gives ' || grade
FROM (
    SELECT r.query_id, r.kind, r.correct, iif(a.text AND a.extracted, a.number = d.gold, 0) AS grade
    FROM Reward r JOIN Timeline t USING (query_id)
    JOIN Answer a ON a.rowid = t.answer JOIN Decision d ON d.rowid = t.decision
    WHERE r.early AND r.error IS NULL AND r.graded_by = 'reference' AND r.boxed
)
WHERE grade IS NOT NULL AND correct IS NOT grade;

-- name: reference_ungraded
-- If comparing whole numbers is enough, no grader can be busy or fail, and any other obstacle is stated in the Reward.
SELECT r.query_id, 'Reward ' || r.query_id || '/' || r.kind || ': the Answer was not compared with its reference'
FROM Reward r JOIN Timeline t USING (query_id)
JOIN Answer a ON a.rowid = t.answer JOIN Decision d ON d.rowid = t.decision
WHERE r.early AND r.error IS NULL AND a.error IS NULL AND a.status = r.status AND d.error IS NULL AND d.gold IS NOT NULL
AND a.text AND NOT a.fault AND a.status <> 'cancelled' AND NOT r.bounded AND NOT r.graded AND NOT r.missing;

-- name: feedback_uncounted
-- Feedback before the Answer is used if the Answer comes within the query's feedback wait, and the Decision within the
-- deployment's; the shorter wait is enough for both. Feedback in a different partition from the Answer is forwarded,
-- and its copy's time is then used. If the first Feedback went to the dead-letter topic, a later one was its duplicate,
-- even after the first has been deleted by retention.
SELECT query_id, 'Reward ' || query_id || '/default, though its Feedback came in time'
FROM Untold u
WHERE EXISTS (
    SELECT 1 FROM Feedback f WHERE f.query_id = u.query_id AND f.part = u.answer_part AND f.ts <= u.feedback_due_ms
    AND f.ts > u.answered_ms - min(u.wait_ms, :wait_ms)
)
AND NOT EXISTS (SELECT 1 FROM Feedback f WHERE f.query_id = u.query_id AND f.error IS NOT NULL)
AND NOT EXISTS (
    SELECT 1 FROM Letter l JOIN Held h ON h.topic = l.topic AND h.part = l.part
    WHERE l.topic = :feedback_topic AND l.query_id = u.query_id AND l.off < h."begin"
)
AND NOT EXISTS (SELECT 1 FROM Reward r WHERE r.query_id = u.query_id AND r.graded_by NOT IN ('', 'score'));

-- name: default_early
-- Like an expiry, this is written after a record appended past the deadline.
SELECT query_id, printf('Reward %s/default %.1f s after the Answer, before the %.1f s for its feedback were over; if the settings had less then, audit with that',
    query_id, (ts - answered_ms) / 1e3, (feedback_due_ms - answered_ms) / 1e3)
FROM Untold WHERE ts + :clocks_ms < feedback_due_ms;

-- name: closed_early_alone
-- Only a reward that waits for feedback can be closed early.
SELECT r.query_id, 'Reward ' || r.query_id || '/default was closed early, and none waited before it'
FROM Reward r JOIN Timeline t USING (query_id)
WHERE r.early AND r.error IS NULL AND r.closed_early AND t.since_ms > :kept_reward
AND NOT EXISTS (SELECT 1 FROM Reward p WHERE p.query_id = r.query_id AND p.kind = 'provisional' AND p.off < r.off);

-- name: reward_feedback
SELECT r.query_id, 'Reward ' || r.query_id || '/' || r.kind || ': correct is ' || said(r.correct)
    || ' by a ' || r.graded_by || ', but no Feedback says so'
FROM Reward r JOIN Timeline t USING (query_id)
WHERE r.early AND r.error IS NULL AND t.since_ms > :kept_feedback
AND r.graded_by NOT IN ('', 'score') AND NOT (r.graded_by = 'reference' AND r.graded)
AND NOT EXISTS (
    -- Feedback that went to the dead-letter topic may still have been applied.
    SELECT 1 FROM Feedback f WHERE f.query_id = r.query_id AND f.grade = r.correct AND f.graded_by = r.graded_by
    AND coalesce(f.error, '') <> 'OversizedFeedback'
);

-- name: reward_known
SELECT query_id, 'Reward ' || query_id || '/' || kind || ': correct is ' || said(correct)
FROM Reward WHERE early AND error IS NULL AND (correct IS NULL) <> (kind IN ('provisional', 'default'));

-- name: reward_scalar
SELECT query_id, 'Reward ' || query_id || '/' || kind || ': the scalar is ' || said(reward)
    || ', but its terms give ' || said(scalar)
FROM Reward
WHERE early AND error IS NULL
AND ((scalar IS NULL) <> (reward IS NULL) OR (scalar IS NOT NULL AND NOT close(scalar, reward)));

-- name: row_missing
SELECT query_id, 'the learner''s row is missing' FROM MissingRow;

-- name: row_of_another_decision
SELECT t.query_id, 'the learner''s row: ' || CASE
    WHEN l.seq <> d.seq THEN 'seq is ' || l.seq || ', the Decision''s ' || d.seq
    WHEN l.action <> d.action THEN 'action is ' || l.action || ', the Decision''s ' || d.action
    WHEN l.objective <> d.objective THEN 'its objective is not that of the Decision'
    WHEN l.decision <> d.whole THEN 'its Decision is not the one that was sent'
    ELSE 'its Query is not that of the Decision'
END
FROM Timeline t JOIN Row l ON l.rowid = t.learner JOIN Decision d ON d.rowid = t.decision
WHERE l.attempt = d.attempt AND (
    l.seq <> d.seq OR l.action <> d.action OR l.objective <> d.objective OR l.decision <> d.whole
    OR l.q_part <> d.q_part OR l.q_off <> d.q_off
);

-- name: row_embedding
SELECT DISTINCT l.query_id, 'the learner''s row: its embedding is not the Context''s'
FROM Row l JOIN Context c USING (query_id)
WHERE c.error IS NULL AND c.q_part = l.q_part AND c.q_off = l.q_off AND c.vector <> l.vector;

-- name: reward_passed_over
SELECT DISTINCT r.query_id, 'Reward ' || r.query_id || '/' || r.kind || ' was passed over by the learner'
FROM Row l JOIN Timeline t USING (query_id)
JOIN Reward r ON r.query_id = l.query_id AND r.seq = l.seq AND r.action = l.action
WHERE t.since_ms > :kept_reward AND r.early AND r.error IS NULL
AND r.off > l.r_off AND r.off + :batch <= :rewards_done
AND CASE l.stage
    WHEN 'pending' THEN r.kind IN ('final', 'correction', 'default')
        OR (r.learn AND r.score IS NOT NULL AND r.log_cost IS NOT NULL)
    WHEN 'learned' THEN r.kind IN ('final', 'correction', 'default')
    ELSE 0
END;

-- name: row_stage
SELECT l.query_id, 'the learner''s row is ' || l.stage || ' by ' || iif(l.kinds = '', 'nothing', l.kinds)
    || '; by its Rewards, ' || p.stage || ' by ' || iif(p.kinds = '', 'nothing', p.kinds)
FROM Row l JOIN Applied p USING (query_id, seq) JOIN Timeline t USING (query_id)
WHERE t.since_ms > :kept_reward AND (l.f_off < 0 OR t.since_ms > :kept_failure)
AND (l.stage <> p.stage OR l.kinds <> p.kinds);

-- name: row_updates
SELECT l.query_id, 'the learner''s row has updates at ' || l.learned || ' and ' || l.corrected || ', its Rewards make '
    || p.updates
FROM Row l JOIN Applied p USING (query_id, seq) JOIN Timeline t USING (query_id)
WHERE t.since_ms > :kept_reward AND (l.f_off < 0 OR t.since_ms > :kept_failure)
AND l.stage = p.stage AND l.kinds = p.kinds
AND (l.learned >= 0) + (l.corrected >= 0) <> p.updates;

-- name: row_terms
-- A deployment may treat an ungraded answer as wrong.
SELECT l.query_id, 'the learner''s row: ' || CASE
    WHEN l.score IS NOT r.score THEN 'score is ' || said(l.score) || ', its Reward''s ' || said(r.score)
    WHEN l.log_cost IS NOT r.log_cost THEN 'log_cost is ' || said(l.log_cost) || ', its Reward''s ' || said(r.log_cost)
    WHEN l.factor <> coalesce(r.factor, 1) THEN 'price_factor is ' || l.factor || ', its Reward''s ' || said(r.factor)
    ELSE 'correct is ' || said(l.correct) || ', its Reward''s ' || said(p.correct)
END
FROM Row l JOIN Applied p USING (query_id, seq) JOIN Timeline t USING (query_id) JOIN Reward r ON r.rowid = p.entered
WHERE t.since_ms > :kept_reward AND l.stage = p.stage AND l.kinds = p.kinds AND l.learned >= 0 AND (
    l.score IS NOT r.score OR l.log_cost IS NOT r.log_cost OR l.factor <> coalesce(r.factor, 1)
    OR (l.correct IS NOT p.correct AND NOT (p.correct IS NULL AND l.correct = 0))
);

-- name: row_failed
-- If a model failed to give an answer, only the fact that the answer was wrong is learned.
SELECT query_id, 'the learner''s row: failed with correct ' || said(correct) || ', score ' || score || ', log_cost ' || log_cost
FROM Row WHERE stage = 'failed' AND (correct IS NOT 0 OR score <> 0 OR log_cost <> 0);

-- name: sequence_twice
SELECT query_id, 'sequence number ' || seq || ' of the learner''s log belongs to more than one change'
FROM Change WHERE seq IN (SELECT seq FROM Change GROUP BY seq HAVING count(*) > 1);

-- name: sequence_gap
-- Rows up to the older of the snapshots kept, :after, may have left the log. A missing row also leaves gaps.
SELECT 'seq ' || (before + 1), 'the learner''s log has no row for sequence numbers ' || (before + 1) || ' to ' || (seq - 1)
FROM (SELECT seq, lag(seq, 1, :after) OVER (ORDER BY seq) AS before FROM Change WHERE seq > :after)
WHERE seq > before + 1 AND NOT EXISTS (SELECT 1 FROM MissingRow);

-- name: policy_version
-- The version in a Decision counts the rewards and corrections before it. It is compared with the version in the
-- previous Decision, unless a change between the two is missing or duplicated, or the previous Decision is in the older
-- of the snapshots kept: if `learner repair` wrote that snapshot, the version no longer counts the rows left out.
SELECT query_id, 'its policy version is ' || version || ', but ' || (before + learned) || ' rewards came before it'
FROM (
    SELECT query_id, version, learned, unbroken,
        lag(version - learned) OVER (ORDER BY seq) AS before, lag(unbroken) OVER (ORDER BY seq) AS unbroken_before
    FROM (
        SELECT seq, query_id, version, sum(does = 'learn') OVER (ORDER BY seq) AS learned,
            seq - row_number() OVER (ORDER BY seq) AS unbroken
        FROM Change WHERE seq > :after
    )
    WHERE version IS NOT NULL
)
WHERE unbroken = unbroken_before AND version - learned <> before;

-- name: snapshot_damaged
SELECT 'snapshot ' || version, fault FROM Version WHERE fault IS NOT NULL;
