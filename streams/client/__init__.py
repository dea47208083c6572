"""What a client of the topics needs: send queries, follow answers, read question files."""
