"""What can go wrong in a runtime.

Exception
├── Unavailable         a dependency of a record is unavailable; the guard waits and tries again
│   └── SendFailed      the broker did not accept a record
│       └── NotAllowed  its access control lists do not say that this process may
├── Torn                what the room knows is ahead of what it has written: counted, and its process ends
└── Crash               the room cannot continue, and its process ends

UniscaleError           in a handler: the record is at fault, and goes to the dead-letter topic
├── RowTooLarge         a row would exceed the record limit
└── UnknownTopic        a topic does not exist
"""

from schemas.errors import UniscaleError


class Unavailable(Exception):
    """A dependency of a record is unavailable: the broker, an encoder. The record is not at fault.

    The guard counts no failure. It waits, longer each time, and calls the handler again.
    """


class SendFailed(Unavailable):
    """The broker did not accept a record. The message gives its reason."""


class NotAllowed(SendFailed):
    """The broker does not let this process read or write a topic: its access control lists do not say so."""


class RowTooLarge(UniscaleError, ValueError):
    """A row would exceed the record limit: the record that would cause it is refused."""


class UnknownTopic(UniscaleError, LookupError):
    """A topic does not exist. Check the prefix, or run `python -m streams topics create`."""


class Torn(Exception):
    """A handler failed after it had changed what the room knows, and before that was durable. Its cause says why.

    The guard counts the failure as any other, but even the third ends the process: no record may be handled with what
    nobody will find in the log. The next process sends a record that has failed three times to the dead-letter topic
    instead of handling it again.
    """


class Crash(Exception):
    """This room cannot continue. `streams.worker` ends the process; in memory the caller restarts the room.

    Nothing between a handler and its runtime catches it, so no offset moves past the failure.
    """
