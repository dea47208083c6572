"""OpenAI's Responses: `POST /v1/responses` and `GET /v1/responses/{id}`, translated to and from the same Query.

request    converts a request to a chat completion request, and input items to messages
response   converts an Answer to a response with output items and usage
endpoint   the routes, and the events of a stream
"""
