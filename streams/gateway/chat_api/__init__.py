"""OpenAI's chat completions: `POST /v1/chat/completions`. Its request is the one that the other protocols become.

endpoint   the response to a request, whole or as a stream of chunks
response   an Answer becomes a completion, or chunks
"""
