"""The errors that a runtime raises or handles."""

from schemas.errors import UniscaleError
from streams.log.base import Unavailable

# Exception
# ├── Unavailable         a dependency of a record is unavailable; the guard waits and tries again
# │   ├── SendFailed      the broker did not accept a record
# │   │   └── NotAllowed  the broker's access control lists do not allow this process to read or write a topic
# │   └── PartitionLost   the partition now belongs to another worker, or is being recovered
# ├── PartialWrite        the service's state is ahead of its log; the failure is counted and the process ends
# └── Crash               the service cannot continue, and its process ends
#     └── Death           a record in flight may be the cause; counted like the killing of a process
#
# UniscaleError           raised by a handler: the record is at fault and goes to the dead-letter topic
# ├── RowTooLarge         a row would exceed the record limit
# └── UnknownTopic        a topic does not exist


class PartitionLost(Unavailable):
    """The partition of the record being handled was reassigned, so nothing else this call does will take effect.

    Also raised if the call depends on rows whose partition was reassigned, or that are being recovered.
    """


class RowTooLarge(UniscaleError, ValueError):
    """A row would exceed the record limit, so the record that would create it goes to the dead-letter topic."""


class PartialWrite(Exception):
    """A handler failed after changing the service's state but before the change was durable; see `__cause__`.

    The guard counts the failure like any other, but even the third one ends the process, because no record may be
    handled with state that is not in the log. After three failures, the next process sends the record to the
    dead-letter topic instead of handling it again.
    """


class Crash(Exception):
    """This service cannot continue. `streams.worker` ends the process; the in-memory cluster restarts the worker.

    Nothing between a handler and its runtime catches this error, so no offset moves past the failure.
    """


class Death(Crash):
    """An engine has died or hangs, or the process is out of memory. Any record in flight may be the cause.

    The guard counts the death against all records in flight, as if the process had been killed (`Crashes.died`).
    """
