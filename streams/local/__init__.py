"""Several processes on one machine: the broker, the rooms and their supervisor.

    with Deployment(Settings(), broker="embedded") as deployment:
        deployment.supervisor.wait_ready()

`broker` starts a broker; `deployment` runs everything: the supervisor that keeps rooms running, their commands and
common log, and what Ctrl-C and SIGTERM do.
"""
