"""The decider: the learner of one shard, its log and its policy."""
