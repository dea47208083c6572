"""A shorter recording, taken into the journal of a longer one: its searches stay."""

from collections.abc import Sequence
from pathlib import Path

from experiments.record import table
from experiments.record.journal import Journal, JournalError
from experiments.record.plan import shards_of
from experiments.record.questions import Question


def take_over(journal: Journal, earlier: Path, questions: Sequence[Question]) -> None:
    """Write an earlier recording's searches into the journal of a longer one.

    Args:
        journal: Of any number of samples, and of the earlier recording's verifiers and perhaps further ones.
        earlier: The file.
        questions: Of the task, all of them.

    Raises:
        OutcomeError: it is no recording of ours.
        JournalError: a question or a setting is another one now.
    """
    settings, now = table.settings_of(earlier), journal.settings
    texts = {each.question_id: each.text for each in questions}
    for each in table.questions_in(earlier):
        if texts.get(each.question_id) != each.text:
            raise JournalError(f"{earlier}: {each.question_id} is another question now; record anew")
    begun = {name: value for name, value in settings.items() if name != "samples"}
    begun["questions"] = now["questions"]
    if settings["verifiers"] == now["verifiers"][: len(settings["verifiers"])]:
        begun["verifiers"] = now["verifiers"]
    journal.take_over(earlier, begun, shards_of(table.rows_of(earlier)))
