"""Everything a process writes: records, rows of tables, and the learner's log with its single writer."""
