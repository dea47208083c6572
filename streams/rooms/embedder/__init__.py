"""The embedder: admission, the encoder, and the way from Query to Context."""
