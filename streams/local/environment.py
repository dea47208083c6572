"""What a child process is given of this process's environment: what it needs to run, and nobody else's secrets."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

SYSTEM: Final = ("PATH", "HOME", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
"""What any program needs: where things are, and in which language to speak."""

KAFKA: Final = (*SYSTEM, "JAVA_HOME", "KAFKA_*")
"""What Apache Kafka's scripts read besides."""

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
    *("SSL_CERT_*", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "*_proxy", "*_PROXY"),  # the way to other servers
)
"""What our services and the libraries in them read besides."""


def environment(given: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the variables that some names admit; `*` stands for anything.

    >>> environment({"LC_ALL": "C", "AWS_SECRET_ACCESS_KEY": "x"}, SYSTEM)
    {'LC_ALL': 'C'}
    """
    wanted = tuple(names)
    return {name: text for name, text in given.items() if any(fnmatchcase(name, each) for each in wanted)}
