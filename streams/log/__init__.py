"""The log that every service, client and command reads: topics of records, wherever they are kept."""
