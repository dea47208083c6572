"""Anthropic's Messages: `POST /v1/messages` and `/v1/messages/count_tokens`, translated to and from the same Query.

request    a request becomes a chat completion request; content blocks become messages
response   an Answer becomes a message with its content blocks, its stop reason and its usage
endpoint   the routes, and the events of a stream
"""
