"""The page: sections and notes, what the tables say in words, figures, the paper's own numbers."""
