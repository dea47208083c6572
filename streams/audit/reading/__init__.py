"""From the raw topics to facts on disk, with a decoder of its own.

log      the raw topics; tests replace it
facts    from raw records to facts
records  what is kept of each kind of record
ledger   where facts are kept: SQLite on disk
"""
