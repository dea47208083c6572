"""The process environment vLLM needs, set in one place before vLLM is imported.

vLLM takes part of its configuration from environment variables alone. This is the only file below the
rooms that touches them, and it only writes: no setting of ours is read from the environment here.
"""

from collections.abc import Container, MutableMapping

from agents.serving.errors import EngineEnvironmentError
from agents.serving.vllm.settings import HostSettings

# Without it one thread cannot own several engines: vLLM starts a process for each, silently, and a further
# model costs 35 s instead of 0.3 s.
REQUIRED = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def preferred_environment(settings: HostSettings) -> dict[str, str]:
    """Return variables that an operator's own export overrides."""
    return {
        "VLLM_LOGGING_LEVEL": settings.log_level,
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # vLLM imports setuptools, which refuses to load when a library imported Python's own distutils before.
        "SETUPTOOLS_USE_DISTUTILS": "stdlib",
    }


def prepare_environment(
    settings: HostSettings, environ: MutableMapping[str, str], imported: Container[str]
) -> None:
    """Write what vLLM needs into `environ`, or refuse when vLLM came first.

    Args:
        settings: The host to be started.
        environ: `os.environ` of this process.
        imported: `sys.modules` of this process.

    Raises:
        EngineEnvironmentError: vLLM is imported already and reads other values than it needs to.
    """
    wrong = {name: value for name, value in REQUIRED.items() if environ.get(name) != value}
    if wrong and "vllm" in imported:
        exports = " ".join(f"{name}={value}" for name, value in wrong.items())
        raise EngineEnvironmentError(
            f"vllm was imported before the engine host was started; start the host first, or export {exports}"
        )
    environ.update(REQUIRED)
    if settings.offline:
        environ["HF_HUB_OFFLINE"] = "1"
    if not settings.models or any(model.kv_cache_bytes is not None for model in settings.models):
        # It would override every model's own kv_cache_bytes, in whole GiB each.
        environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
    for name, value in preferred_environment(settings).items():
        environ.setdefault(name, value)
