"""The demonstration: questions through the whole loop, a summary and a report."""
