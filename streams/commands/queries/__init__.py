"""What a client of a deployment does: `ask`, `produce`, `answers`, `feedback`, `replay`, `explain`."""
