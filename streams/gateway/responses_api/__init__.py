"""OpenAI's Responses: `POST /v1/responses` and `GET /v1/responses/{id}`, translated to and from the same Query.

request    a request becomes a chat completion request; input items become messages
response   an Answer becomes a response with its output items and its usage
endpoint   the routes, and the events of a stream
"""
