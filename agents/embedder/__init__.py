"""Query to Context: the text of a question becomes a unit vector."""
