"""Several processes on one machine: the broker, the rooms and their supervisor.

    with Deployment(Settings(), broker="embedded") as deployment:
        deployment.supervisor.wait_ready()

`deployment` runs everything, `broker` starts a broker, `supervisor` keeps rooms running, `launch` holds their commands,
`logfile` their common log, `signals` what Ctrl-C and SIGTERM do.
"""
