"""The gateway: an OpenAI-compatible HTTP API in front of the topics. It sends queries and follows their progress.

app            its routes as one ASGI application, probes, where it listens
endpoint       what every request passes: host, key, body; `auth` has API keys and their limits
chat           `POST /v1/chat/completions`, whole or as a stream
routes         all other routes, and the page (`static/`)
request        a chat completion request becomes a Query; `responses` builds what is returned
errors         the shape of every error, and the mapping of exceptions to it
service        follows the topics, and holds the parts that the routes use:
submission       a request becomes a query that is sent, or a preview
searches         what clients wait for: sent, followed, cancelled once they leave
open_requests    who waits for which query, and which search a retry joins
access           which queries a caller may see, and feedback on them
index            recent queries, rebuilt from the topics; `statistics` over them
"""
