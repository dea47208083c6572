"""The gateway: an OpenAI-compatible HTTP API in front of the topics. It sends queries and follows their progress.

app         the service, its ASGI application, probes; `guard` checks requests, `auth` API keys and their limits request
a chat completion request becomes a Query; `responses` builds what is returned errors      the shape of every error, and
the mapping of exceptions to it chat        `POST /v1/chat/completions`, whole or as a stream routes      all other
routes, and the page (`static/`) coordinator between HTTP and the topics: admit, send, wait, cancel, accept feedback;
`rejoin` finds what a retry repeats, `waiting` shows a request what becomes of its query, `deciders` say what would be
chosen index       recent queries, rebuilt from the topics; `statistics` over them
"""
