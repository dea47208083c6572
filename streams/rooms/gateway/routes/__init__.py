"""The gateway's HTTP routes, one file a subject. `app` puts them together; `guard` lets requests in."""
