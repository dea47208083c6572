"""The audit accounts for every query_id from the raw topics. It shares no code with what it checks.

It imports only topic names, settings and the connection to the broker. It decodes the records and computes costs (App.
D.3) with its own code. See docs/audit.md.

    run           reads the topics, accounts for every query, and reports
    reading       turns the raw topics into facts in SQLite
    facts.sql     the fields kept from each record
    timeline.sql  all facts about each query, and its state
    checks.sql    the invariants, with one statement per check
    summary.sql   the totals of a report
    checks        runs these, finds which snapshots are complete, and whose rows may have left the learner's log
    price         computes what a search costs
"""

from streams.audit.checks import Discrepancy
from streams.audit.reading import BrokerLog, Log, Raw, Span
from streams.audit.run import Report, audit

__all__ = ["BrokerLog", "Discrepancy", "Log", "Raw", "Report", "Span", "audit"]
