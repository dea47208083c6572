"""The runtime that services are built on: records in, records out, tables, timers and the guard around each handler."""
