"""What one worker handles of one topic: its runtime binds the handler, the cluster hands records over."""

from streams.runtime.base import BatchHandler


class Subscription:
    """A handler bound to a topic, with how far each assigned partition was handed over and handled."""

    def __init__(self, topic: str, handle: BatchHandler, most: int, stage: str) -> None:
        self.topic = topic
        self.handle = handle
        self.most = most
        self.stage = stage
        self.positions: dict[int, int] = {}
        self.handled: dict[int, int] = {}
        self.busy: set[int] = set()
