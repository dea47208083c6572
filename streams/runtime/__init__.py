"""The runtime that rooms are built on: records in, records out, tables, timers and the guard around each handler."""
