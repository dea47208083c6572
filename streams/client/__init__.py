"""Client library: send queries, wait for Answers, send feedback, follow records and explain queries.

    from streams.client import Client, KafkaSettings, Settings

    with Client(Settings(kafka=KafkaSettings(bootstrap="127.0.0.1:9092"))) as client:
        answer = client.ask("How much is 9 times 7?", reference="63")
        client.feedback(answer.query_id, correct=True)
        print(client.explain(answer.query_id).decision)

`client` contains the Client and tracks the progress of the queries it sends; `replay` contains send schedules and
replays of recorded traffic; `events` iterates over live records and reads a finished run's log; and `questions` reads
question files.
"""

from streams.client.client import Client, IdTaken, NoAnswer, SentQueries
from streams.client.events import EventFollower, Kind, QueryEvent, Timelines, read_timelines
from streams.client.questions import QuestionError, query_from, query_of, read_questions, renamed
from streams.client.replay import SendSchedule
from streams.settings import KafkaSettings, Settings
from streams.timeline import Timeline

__all__ = [
    "Client",
    "KafkaSettings",
    "Settings",
    "SendSchedule",
    "SentQueries",
    "NoAnswer",
    "IdTaken",
    "QueryEvent",
    "Kind",
    "EventFollower",
    "Timelines",
    "Timeline",
    "read_timelines",
    "read_questions",
    "renamed",
    "query_of",
    "query_from",
    "QuestionError",
]
