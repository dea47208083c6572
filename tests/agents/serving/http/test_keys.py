"""API keys: each host is sent its own, and nothing shows them."""

import pytest

from agents.serving.http import Keys, KeysError
from agents.serving.registry import HostingOptions


def test_a_key_goes_to_its_own_host_and_port() -> None:
    keys = Keys.read("gpu-1:8000=a, GPU-2=b,api.example.com=c=d")
    assert keys.of("http://gpu-1:8000/v1") == "a"
    assert keys.of("http://gpu-1:9000") == ""
    assert (keys.of("http://gpu-2"), keys.of("https://gpu-2:443")) == ("b", "b")
    assert keys.of("https://api.example.com/v1") == "c=d"
    for url in (
        "https://api.example.com.evil.example",
        "https://evil.example/gpu-2",
        "http://x@evil",
        "",
        "no url",
    ):
        assert keys.of(url) == ""


def test_shared_key_goes_only_to_catalogue_endpoints() -> None:
    keys = Keys.read("other=own", shared="shared", urls=["http://vllm:8000", "https://c.example/v1"])
    assert (keys.of("http://vllm:8000/v1"), keys.of("https://c.example")) == ("shared", "shared")
    assert (keys.of("http://other:1"), keys.of("http://added-by-a-record:8000")) == ("own", "")
    assert Keys.read("", "", ["http://vllm:8000"]).of("http://vllm:8000") == ""


@pytest.mark.parametrize("text", ["hunter2", "=hunter2", "host=", "a=b,hunter2"])
def test_what_is_not_host_and_key_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(KeysError, match="write host=key") as caught:
        Keys.read(text)
    assert "hunter2" not in str(caught.value)


def test_nothing_that_holds_a_key_shows_it() -> None:
    keys = Keys.read("host=hunter2")
    for each in (keys, HostingOptions(keys=keys)):
        assert "hunter2" not in repr(each) + str(each)
