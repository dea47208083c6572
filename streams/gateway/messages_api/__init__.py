"""Anthropic's Messages: `POST /v1/messages` and `/v1/messages/count_tokens`, translated to and from the same Query.

request    converts a request to a chat completion request, and content blocks to messages
response   converts an Answer to a message with content blocks, stop reason and usage
endpoint   the routes, and the events of a stream
"""
