"""Recorded searches run again: latency by component, the depth limit both ways."""
