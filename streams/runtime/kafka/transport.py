"""faust's app and transport, with our consumer and a single sender."""

from collections.abc import Callable, Mapping
from typing import Any

import faust
from faust.tables.manager import TableManager
from faust.transport.drivers import aiokafka

from streams.runtime.kafka.consuming.consumer import Consumer
from streams.runtime.kafka.writing.sender import Sender


def _unheard(error: BaseException) -> None:
    raise error


class Producer(aiokafka.Producer):
    """faust's producer, which sends each record in a batch of its own to a broker that needs this."""

    def _settings_default(self) -> Mapping[str, Any]:
        app: Any = self.app
        return {**super()._settings_default(), **({"max_batch_size": 1} if app.embedded() else {})}


class Transport(aiokafka.Transport):
    """faust's transport, with our consumer and producer."""

    Consumer = Consumer
    Producer = Producer


class Tables(TableManager):
    """faust's tables, which subscribe at once.

    faust waits for a second, in which a program may still declare tables. Ours are declared before the app starts, and
    its agents have named their topics when they start, which is before the tables do.
    """

    async def on_start(self) -> None:
        """Name the changelogs and begin to recover what will be assigned."""
        await self._update_channels()
        await self.recovery.start()


class App(faust.App):
    """faust's app, with our transport and tables.

    Attributes:
        sender: Sends every record of the process.
        fail: Called with the exception of a handler; by default it raises it, and `create_app` makes it end the
            process.
        replaced: Called when another process has joined under this one's instance name.
        embedded: Called once there is a broker, to learn whether it is the embedded one.
    """

    def __init__(
        self, *args: Any, send_interval_s: float = 0.0, embedded: Callable[[], bool], **kwargs: Any
    ) -> None:
        super().__init__(*args, TableManager=Tables, **kwargs)
        self.sender = Sender(self._connected_producer, send_interval_s)
        self.fail: Callable[[BaseException], None] = _unheard
        self.replaced: Callable[[], None] = lambda: None
        self.embedded = embedded

    def _connected_producer(self) -> Any:
        producer: Any = self.producer
        return producer._ensure_producer()

    def _new_transport(self) -> Transport:
        return Transport(self.conf.broker_consumer, self)


def sender_of(app: Any) -> Sender:
    """Return the sender of one of our apps."""
    assert isinstance(app, App)
    return app.sender


def consumer_of(app: Any) -> Consumer:
    """Return the consumer of one of our apps."""
    consumer = app.consumer
    assert isinstance(consumer, Consumer)
    return consumer
