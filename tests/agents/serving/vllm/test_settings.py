"""Settings and environment of the engine host: what is refused, and what is written where."""

import pytest

from agents.catalogue.models import Architecture, EngineSettings, Model, Sampling
from agents.serving.errors import EngineEnvironmentError
from agents.serving.registry import HostingOptions, hosted_model
from agents.serving.vllm_settings import (
    GIB,
    checkpoint_path,
    kv_cache_bytes,
    prepare_environment,
)


def test_what_vllm_needs_is_written_before_it_is_imported() -> None:
    environ = {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_LOGGING_LEVEL": "INFO"}
    prepare_environment(True, environ, imported={})
    assert environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environ["HF_HUB_OFFLINE"] == "1"
    # Each model has its own cache size, which the variable would override.
    assert "VLLM_CPU_KVCACHE_SPACE" not in environ
    assert environ["VLLM_LOGGING_LEVEL"] == "INFO", "the operator's own export wins"


def test_vllm_imported_first_with_another_environment_is_refused() -> None:
    environ: dict[str, str] = {}
    with pytest.raises(EngineEnvironmentError, match="export VLLM_ENABLE_V1_MULTIPROCESSING=0"):
        prepare_environment(True, environ, imported={"vllm"})
    assert environ == {}


def test_vllm_imported_first_with_the_right_environment_is_fine() -> None:
    environ = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    prepare_environment(True, environ, imported={"vllm"})


def test_a_kv_cache_holds_a_sequence_of_full_length() -> None:
    shape = Architecture(parameters=1, layers=28, query_heads=16, kv_heads=8, head_dim=128)
    size = kv_cache_bytes(shape, EngineSettings(dtype="float32", context_tokens=32_768))
    assert size >= 2 * 28 * 8 * 128 * 4 * 32_768
    many = EngineSettings(dtype="float32", context_tokens=1_024, max_sequences=1_000)
    assert kv_cache_bytes(shape, many) <= GIB


def entry(**engine: object) -> Model:
    return Model(
        name="m",
        checkpoint="models/m",
        architecture=Architecture(parameters=1, layers=2, query_heads=2, kv_heads=1, head_dim=32),
        sampling=Sampling(temperature=1.0, step_tokens=8, depth_limit=4),
        engine=EngineSettings(dtype="float32", context_tokens=512, max_sequences=64, **engine),  # type: ignore[arg-type]
    )


def test_the_catalogue_s_cache_and_block_sizes_are_used() -> None:
    hosted = hosted_model(entry(kv_cache_bytes=16 * 2**20, block_tokens=16), HostingOptions())
    assert (hosted.kv_cache_bytes, hosted.block_tokens) == (16 * 2**20, 16)
    usual = hosted_model(entry(), HostingOptions())
    assert (usual.kv_cache_bytes, usual.block_tokens) == (32 * 2**20, 32)
    assert hosted_model(entry(), HostingOptions(device="gpu")).block_tokens is None


def test_cache_too_small_for_a_sequence_is_enlarged() -> None:
    hosted = hosted_model(entry(kv_cache_bytes=1), HostingOptions())
    token_bytes = 2 * 2 * 1 * 32 * 4
    assert 512 * token_bytes < (hosted.kv_cache_bytes or 0) <= 1024 * token_bytes


def test_a_checkpoint_is_a_folder_or_a_hub_id(tmp_path) -> None:
    (tmp_path / "models" / "m").mkdir(parents=True)
    assert checkpoint_path("models/m", str(tmp_path)) == str(tmp_path / "models" / "m")
    assert checkpoint_path("Qwen/Qwen3-0.6B", str(tmp_path)) == "Qwen/Qwen3-0.6B"
