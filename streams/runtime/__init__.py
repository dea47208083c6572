"""What a room stands on: records in, records out, tables, timers and the guard around each handler."""
