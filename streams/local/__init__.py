"""A deployment on one machine: the broker, the services and their supervisor.

    with Deployment(Settings(), broker="embedded") as deployment:
        deployment.supervisor.wait_ready()

`broker` starts a broker. `deployment` runs everything: it has the supervisor, the services' commands and common log,
and the handling of Ctrl-C and SIGTERM.
"""
