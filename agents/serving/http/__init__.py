"""Models served elsewhere: JSON over HTTP.

server   the client of one server: time-outs, retries, refusals as errors of ours
breaker  the circuit breaker of an endpoint
keys     API keys by host
"""
