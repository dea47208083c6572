"""OpenAI's API on top of searches: requests in, completions, chunks and errors out."""
