"""SearchStep to Verification: process reward models score the drafts of a step."""
