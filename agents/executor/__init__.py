"""Decision and Verification to SearchStep and Answer: the search forest and its engines (§3.3)."""
