"""The audit: every query_id accounted for, from the raw topics, by code that what it checks knows nothing of.

It imports topic names, settings and the connection to the broker; the rest is a reading of its own of the records, of
the price (App. D.3) and of the learner's sums. See docs/audit.md.

    run        captures the ends, reads, accounts, reports
    log        the raw topics; the seam for tests
    facts      what is kept of each record
    ledger     where it is kept: SQLite on disk
    stories    one query's facts together, and its state
    checks     what must hold of one query
    price      what a search costs
    learner    the policy as the fold of its log
    snapshots  the policy's snapshots in that log
"""

from streams.audit.log import BrokerLog, Log, Raw, Span
from streams.audit.run import Report, audit

__all__ = ["BrokerLog", "Log", "Raw", "Report", "Span", "audit"]
