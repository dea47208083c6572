"""A room's process: it starts, stops in order, and ends itself when it no longer makes progress."""
