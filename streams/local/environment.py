"""Filters the environment that is passed to child processes, so that they get what they need, but no other secrets."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

SYSTEM: Final = ("PATH", "HOME", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
"""Variables that any program needs, such as paths and the locale."""

KAFKA: Final = (*SYSTEM, "JAVA_HOME", "KAFKA_*")
"""Variables that Apache Kafka's scripts read."""

SERVICE: Final = (
    *SYSTEM,
    *("UNISCALE_*", "STREAMS_*", "PYTHON*", "VIRTUAL_ENV"),
    *("OMP_*", "MKL_*", "KMP_*", "OPENBLAS_*", "TOKENIZERS_*", "TORCH*", "VLLM_*"),  # engines
    *(
        "CUDA_*",
        "NVIDIA_*",
        "NCCL_*",
        "HF_*",
        "HUGGING*",
        "TRANSFORMERS_*",
        "XDG_*",
    ),  # devices, and the model hub
    *("SSL_CERT_*", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "*_proxy", "*_PROXY"),  # TLS and proxies
)
"""Variables that our services and their libraries read."""

TRACER: Final = ("OTEL_*",)
"""Variables of OpenTelemetry. Only the tracer gets them, because one of them may hold a key."""


def environment(given: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the variables that match any of these names; `*` matches anything.

    >>> environment({"LC_ALL": "C", "AWS_SECRET_ACCESS_KEY": "x"}, SYSTEM)
    {'LC_ALL': 'C'}
    """
    wanted = tuple(names)
    return {name: text for name, text in given.items() if any(fnmatchcase(name, each) for each in wanted)}
