"""Errors of a runtime."""

from schemas.errors import UniscaleError
from streams.log.base import Unavailable

# Exception
# ├── Unavailable         a dependency of a record is unavailable; the guard waits and tries again
# │   ├── SendFailed      the broker did not accept a record
# │   │   └── NotAllowed  its access control lists do not allow this process to
# │   └── PartitionLost   the partition now belongs to another worker, or is being recovered
# ├── PartialWrite        the service's state is ahead of its log: counted, and its process ends
# └── Crash               the service cannot continue, and its process ends
#     └── Death           a record in flight may be the cause: counted like a killed process
#
# UniscaleError           in a handler: the record is at fault, and goes to the dead-letter topic
# ├── RowTooLarge         a row would exceed the record limit
# └── UnknownTopic        a topic does not exist


class PartitionLost(Unavailable):
    """The partition of the record being handled was reassigned: nothing more of this call takes effect.

    Or the partition of the rows it depends on was reassigned, or they are being recovered.
    """


class RowTooLarge(UniscaleError, ValueError):
    """A row would exceed the record limit: the record that would cause it is refused."""


class PartialWrite(Exception):
    """A handler failed after changing the service's state but before the change was durable. Its cause says why.

    The guard counts the failure like any other, but even the third ends the process: no record may be handled with
    state that is not in the log. After three failures, the next process sends the record to the dead-letter topic
    instead of handling it again.
    """


class Crash(Exception):
    """This service cannot continue. `streams.worker` ends the process; in memory the caller restarts the service.

    Nothing between a handler and its runtime catches it, so no offset moves past the failure.
    """


class Death(Crash):
    """An engine has died or hangs, or the process is out of memory: any record in flight may be the cause.

    The guard counts it against all of them, like an abrupt death of the process (`Crashes.died`).
    """
