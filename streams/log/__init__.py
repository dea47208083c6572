"""The log that every service, client and command reads: topics of records, on Kafka or in memory."""
