"""The policy lab: recorded outcomes in, the tables and figures of the paper out. No Kafka."""
