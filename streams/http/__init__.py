"""HTTP servers: uvicorn in a service's event loop, and a process's health probes and metrics."""
