"""Tables of outcomes: recordings of ours, anybody's by a mapping, and the world a learner meets."""
