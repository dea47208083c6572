"""The demo: it runs questions through the whole loop, and writes a summary and a report."""
