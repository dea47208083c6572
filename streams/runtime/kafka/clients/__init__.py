"""Kafka without a room: connections from the settings, topics created, checked, read to their ends and sent again."""
