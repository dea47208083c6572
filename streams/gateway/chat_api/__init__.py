"""OpenAI's chat completions: `POST /v1/chat/completions`. The other protocols' requests are translated into its own.

endpoint   the response to a request, whole or as a stream of chunks
response   converts an Answer to a completion, or to chunks
"""
