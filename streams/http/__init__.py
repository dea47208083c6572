"""HTTP servers: uvicorn in a service's event loop, a process's probes and metrics, the decider's previews."""
