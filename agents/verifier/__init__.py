"""SearchStep to Verification: process reward models score a step's drafts."""
