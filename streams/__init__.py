"""The services around the core, and the only package that imports faust, aiokafka, kafka and prometheus_client.

Read `services/__init__.py` first: it says which service reads and writes which topic.
"""

__version__ = "0.1.0"
