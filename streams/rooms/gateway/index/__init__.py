"""What the gateway knows of recent queries: a table rebuilt from the topics, and the statistics over it."""
