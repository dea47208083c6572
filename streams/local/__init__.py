"""Several processes on one machine: the broker, the services and their supervisor.

    with Deployment(Settings(), broker="embedded") as deployment:
        deployment.supervisor.wait_ready()

`broker` starts a broker; `deployment` runs everything: the supervisor that keeps services running, their commands and
common log, and what Ctrl-C and SIGTERM do.
"""
