"""The policy lab: computes the paper's tables and figures from recorded outcomes, without Kafka."""
