"""The gateway: an OpenAI-compatible HTTP API in front of the topics. It sends queries and follows their progress.

app            all routes as one ASGI application, the probes, and the address to listen on
endpoint       checks on every request: host, key and body; `auth` has API keys, and `quotas` what each may use
completion_response  from a request to its search and its response, whole or as a stream: what all protocols share
chat_api       `POST /v1/chat/completions`, whole or as a stream; `responses_api` and `messages_api` for other protocols
routes         all other routes, and the page (`static/`)
translation    the part that the translations of other protocols share
upstream_message  the contents of an upstream's message besides its text
request        converts a chat completion request to a Query
answer_details  what every protocol returns besides an answer's text; `sse` formats the events of streams
errors         the format of every error, and the mapping from exceptions
service        follows the topics, and owns the components that the routes use:
submission       turns a request into a query and sends it, or into a preview
searches         running searches: sent, followed, cancelled when their clients leave
open_requests    which requests wait for which query, and which search a retry joins
access           which queries a caller may see, and feedback on them
index            recent queries, rebuilt from the topics; `statistics` over them
"""
