"""The proxy does what it is told: what arrives while it cuts, delays, half-closes a connection or loses answers."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.proxy import TO_CLIENT, TO_SERVER, Proxy


class Echo:
    """A server that says back what it hears, and keeps it."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.heard = b""
        self.ends = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1000):
                    self.heard += data
                    connection.sendall(data)
            except OSError:
                pass
        self.ends += 1


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.socket.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(1) as made:
        made.lead([echo.port])
        yield made


def connected(proxy: Proxy) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", proxy.ports[0]), 10)
    assert said(client, b"hello") == b"hello"
    return client


def said(client: socket.socket, what: bytes) -> bytes:
    client.sendall(what)
    return client.recv(1000)


def test_bytes_and_ends_pass(proxy: Proxy, echo: Echo) -> None:
    client = connected(proxy)
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1000) == b""
    assert echo.heard == b"hello"


def test_a_cut_resets_what_is_open_and_what_is_new(proxy: Proxy) -> None:
    client = connected(proxy)
    with proxy.cut([0]):
        with pytest.raises(ConnectionResetError):
            client.recv(1000)
        with pytest.raises((OSError, AssertionError)):  # reset before or after it has connected
            connected(proxy)
    connected(proxy)


def test_a_delay_holds_one_direction(proxy: Proxy, echo: Echo) -> None:
    client = connected(proxy)
    with proxy.delayed([0], 0.0, 0.3):
        began = time.monotonic()
        assert said(client, b"slow") == b"slow"
        assert time.monotonic() - began >= 0.3
    assert echo.heard == b"helloslow"


def test_lost_answers_arrive_never_and_their_requests_do(proxy: Proxy, echo: Echo) -> None:
    client = connected(proxy)
    with proxy.losing_answers([0]):
        client.sendall(b"store this")
        while proxy.missing([0]) == 0:
            time.sleep(0.01)
    assert echo.heard == b"hellostore this"
    with pytest.raises(ConnectionResetError):
        client.recv(1000)
    connected(proxy)


def test_client_half_closed_reads_eof_while_the_server_reads_on(proxy: Proxy, echo: Echo) -> None:
    client = connected(proxy)
    with proxy.half_closed([0], TO_CLIENT):
        assert client.recv(1000) == b""
        client.sendall(b" still")
        while echo.heard != b"hello still":
            time.sleep(0.01)
        client.close()
        with connected(proxy):
            assert echo.ends == 0, "the server was told"
    while echo.ends < 2:
        time.sleep(0.01)


def test_a_server_half_closed_leaves_and_the_client_is_not_told(proxy: Proxy, echo: Echo) -> None:
    client = connected(proxy)
    with proxy.half_closed([0], TO_SERVER):
        while echo.ends == 0:
            time.sleep(0.01)
        client.sendall(b"anybody?")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1000)
    client.settimeout(10)
    with pytest.raises(ConnectionResetError):
        client.recv(1000)
    assert echo.heard == b"hello"
