-- The totals of a report, which `run.py` puts into words. The parameters are those of `checks.sql`.

-- name: states
-- The number of queries in each state, by the reason for the state if there is one.
SELECT iif(why <> '', state || ' (' || why || ')', state) AS said, count(*) FROM State GROUP BY said;

-- name: oldest
-- The hundred oldest pending queries: what each is waiting for, its age, and the time left until its deadline, in
-- seconds.
SELECT query_id, waits_for, round((:now_ms - asked_ms) / 1e3, 1), round((deadline_ms - :now_ms) / 1e3, 1)
FROM State WHERE state = 'pending' ORDER BY asked_ms, query_id LIMIT 100;

-- name: overdue
-- The number of queries that are pending past their deadline.
SELECT count(*) FROM State WHERE state = 'pending' AND deadline_ms < :now_ms;

-- name: repeated
-- The number of harmless repeats.
SELECT (SELECT count(*) FROM Query q JOIN Timeline t USING (query_id) WHERE t.query <> q.rowid)
+ (SELECT count(*) - count(DISTINCT query_id) FROM Context WHERE error IS NULL)
+ (SELECT count(*) - count(DISTINCT query_id) FROM Decision WHERE error IS NULL)
+ (SELECT count(*) - count(DISTINCT query_id) FROM Answer WHERE error IS NULL)
+ (SELECT count(*) - count(DISTINCT query_id || '/' || kind) FROM Reward WHERE error IS NULL);

-- name: updates
-- The number of rewards and corrections that entered the policy, according to the learner's rows.
SELECT total((learned >= 0) + (corrected >= 0)) FROM Row;

-- name: applied
-- The number that should have entered, according to the Rewards or, for queries whose Rewards are gone, the rows.
SELECT total(iif(t.since_ms > :kept_reward, p.updates, (l.learned >= 0) + (l.corrected >= 0)))
FROM Row l JOIN Applied p USING (query_id) JOIN Timeline t USING (query_id);
