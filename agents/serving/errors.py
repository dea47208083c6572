"""Errors of model serving, shared by the executor and the verifier.

    UniscaleError
    └── ServingError
        ├── EngineEnvironmentError   vLLM is missing, or this process cannot host it
        ├── EngineStartError         a model could not be loaded
        ├── EngineDiedError          an engine or its thread is gone: restart the process
        ├── HostClosedError          the host or connection was closed
        ├── UnknownEngineError       no engine of that name is hosted here
        ├── DeadlinePassedError      the query's deadline passed first
        ├── EndpointSuspendedError   the endpoint's circuit breaker is open
        ├── EndpointRefusedError     the endpoint refuses every request: wrong key, or it does not serve this model
        ├── RequestRefusedError      this request can never succeed
        │   ├── ContentFilteredError a content filter withheld the completion
        │   └── PromptTooLongError   the prompt leaves no room in the model's context
        └── EngineFaultError         another attempt may succeed
            ├── EngineUnreachableError   no connection
            ├── EngineBusyError          the server asked to wait (429, 503)
            ├── StreamBrokenError        a reply broke off after its text had begun; not sent again
            ├── EngineTimeoutError       no reply in time; not sent again, because the work may have been done
            └── EngineReplyError         an invalid reply; not sent again

Three class attributes say what to do: `retryable` (try again later), `fatal` (this process cannot continue and must
exit, so that the supervisor restarts it) and `infrastructure` (neither the query nor the action is at fault, so nothing
may be learned from the error). `cause` says how the model itself may have failed (`schemas.failure.Cause`); for a
generator, it takes precedence over `infrastructure`.
"""

from typing import ClassVar

from schemas.errors import UniscaleError
from schemas.failure import Cause
from schemas.prices import Billed


class ServingError(UniscaleError):
    """A model could not be served. The subclass says what to do.

    Attributes:
        billed: Tokens billed by an upstream for replies that this error discards; None if unknown.
        server: Base URL of the server that raised it, if the model has several; empty otherwise.
    """

    billed: Billed | None = None
    server: str = ""

    retryable: ClassVar[bool] = False
    fatal: ClassVar[bool] = False
    infrastructure: ClassVar[bool] = True
    cause: ClassVar[Cause] = ""


class EngineEnvironmentError(ServingError):
    """This process cannot host vLLM: install it, or let the host import it first."""

    fatal = True


class EngineStartError(ServingError):
    """A model could not be loaded. The message names the model and vLLM's reason."""


class EngineDiedError(ServingError):
    """An engine, or the thread that owns it, stopped working. Restart the process."""

    fatal = True


class HostClosedError(ServingError):
    """The host or connection is closed. Nothing is served after `close()`; use its replacement."""


class UnknownEngineError(ServingError):
    """No engine of that name is hosted here. The message lists those that are."""


class DeadlinePassedError(ServingError):
    """The query's deadline passed before the model replied. Give the query more time, or the model less load."""


class EndpointSuspendedError(ServingError):
    """The endpoint failed several times in a row and gets no requests for a while. Check its server."""


class EndpointRefusedError(ServingError):
    """The endpoint refuses every request (401, 402, 403, 404, redirects). Check its key, address and model name."""


class RequestRefusedError(ServingError):
    """The model refuses this request and will refuse it again. Change the request."""

    infrastructure = False
    cause: ClassVar[Cause] = "refused"


class ContentFilteredError(RequestRefusedError):
    """A content filter at the server withheld the completion. Change the request, or the filter."""

    cause: ClassVar[Cause] = "filtered"


class PromptTooLongError(RequestRefusedError):
    """A prompt leaves no room in the model's context."""

    cause: ClassVar[Cause] = ""

    def __init__(self, model: str, prompt_tokens: int, context_tokens: int, what: str = "prompt") -> None:
        super().__init__(
            f"{model}: a {what} of {prompt_tokens} tokens leaves no room in a context of {context_tokens}; "
            "shorten the query or choose a model with a longer context"
        )
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class EngineFaultError(ServingError):
    """An attempt at a request failed; another attempt may succeed."""

    retryable = True


class EngineUnreachableError(EngineFaultError):
    """No connection to the server. Check its address and that it is up."""


class StreamBrokenError(EngineFaultError):
    """A reply broke off after its text had begun. Check the server and any proxy in between.

    A client may have read the text, and a second reply may have a different text, so the request is not sent again.
    """

    retryable = False


class EngineTimeoutError(EngineFaultError):
    """The server did not reply in time. Raise the time-out or lower its load.

    The work may have been done and may be billed, so the request is not sent again.
    """

    retryable = False
    cause = "timeout"


class EngineBusyError(EngineFaultError):
    """The server asked to wait (429 or 503).

    Attributes:
        asked_s: Seconds in the reply's Retry-After; 0 if there is none.
        overloaded: Whether the server is healthy but overloaded (429), rather than not ready (503).
    """

    asked_s: float = 0.0
    overloaded: bool = False


class EngineReplyError(EngineFaultError):
    """The server's reply violates the protocol. The work has been done, so the request is not sent again."""

    retryable = False
    cause = "undecodable"
