"""The page to read first: which service reads and writes which topic.

    query ──────────────▶ embedder ──▶ context ──▶ decider ──▶ action-decision, action-decision.<group>
                             ▲                        ▲                     │
    answer (admission) ──────┘         reward ────────┘                     ▼
                                          ▲          verification.<group> ▶ executor <group> ──▶ search-step
    answer, feedback, due,                │                     ▲           │                        │
    action-decision ─────▶ aggregator ────┘                     └─ verifier ◀────────────────────────┘
                             │    │                                         ▼
                             │    └──▶ answer (expired), due              answer
    control and heartbeat are followed by every process that needs them; every service may write `answer`
    (rejected, failed) and `dead-letter`.

The same as a table is `page()`, from `streams.services.SERVICES`. A record is acknowledged when its handler returns,
and a handler returns when everything the record caused has been delivered. Handlers are idempotent by identity, so a
second delivery changes nothing.
"""

from streams.runtime import effects
from streams.runtime.base import Runtime
from streams.services import SERVICES


async def connect(runtime: Runtime) -> None:
    """Build the service of this worker and bind its handlers to its topics."""
    await effects.connect(runtime, SERVICES[runtime.service])


def page() -> str:
    """Return one line a service: what it handles and what it writes."""
    width = max(map(len, SERVICES))
    return "\n".join(
        f"{spec.name:<{width}}  {', '.join(spec.inputs)}  ->  {', '.join(spec.outputs)}"
        for spec in SERVICES.values()
    )
