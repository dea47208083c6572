"""The runtime that services are built on: it delivers and sends records, keeps tables and guards each handler."""
