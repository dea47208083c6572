"""The gateway: an OpenAI-compatible HTTP API in front of the topics. It sends queries and follows their progress.

app            its routes as one ASGI application, probes, where it listens
endpoint       checks on every request: host, key, body; `auth` has API keys and their limits
turn           one request, one search: what the protocols share
chat_api       `POST /v1/chat/completions`, whole or as a stream; `responses_api` and `messages_api` translate others
routes         all other routes, and the page (`static/`)
translation    what the translations of other protocols share
upstream_message  what an upstream's message says besides its text
request        a chat completion request becomes a Query
answer_details  what every protocol says of an Answer beside its text; `sse` shapes the events of streams
errors         the shape of every error, and the mapping of exceptions to it
service        follows the topics, and owns the components that the routes use:
submission       turns a request into a query and sends it, or into a preview
searches         running searches: sent, followed, cancelled when their clients leave
open_requests    which requests wait for which query, and which search a retry joins
access           which queries a caller may see, and feedback on them
index            recent queries, rebuilt from the topics; `statistics` over them
"""
