"""The audit: accounts for every query_id from the raw topics, with code that shares nothing with what it checks.

It imports only topic names, settings and the connection to the broker. It decodes the records, computes the price
(App. D.3) and adds up the learner's sums with its own code. See docs/audit.md.

    run        reads the topics, accounts for every query, reports
    reading    from the raw topics to facts on disk
    checks     all facts of one query, its state, and what must hold for it and for its row in the learner's log
    price      what a search costs
    learner    whether the policy is the fold of its log, snapshots included
"""

from streams.audit.reading import BrokerLog, Log, Raw, Span
from streams.audit.run import Report, audit

__all__ = ["BrokerLog", "Log", "Raw", "Report", "Span", "audit"]
