"""Who serves HTTP: uvicorn in a service's loop, the probes and metrics of a process, the previews of the decider."""
