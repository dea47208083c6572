"""How paths are put to process reward models: the text they were trained on, one place a step."""

import pytest

from agents.serving.errors import EngineStartError
from agents.serving.prompts import ChatPrompts
from agents.verifier.formats import SkyworkFormat, StepTagFormat

STEPS = ("12 + 7 is 19.\n\n", "So it is \\boxed{19}.")


@pytest.fixture(scope="module")
def prompts(micro) -> ChatPrompts:
    return ChatPrompts.load(micro.path("micro-prm"))


def text(prompts: ChatPrompts, ids) -> str:
    return prompts.decode(ids, skip_special_tokens=False)


def test_a_step_tag_follows_every_step_without_its_blank_line(prompts) -> None:
    rendered = StepTagFormat(prompts, "<|step|>").render("12 + 7?", STEPS)
    told = "12 + 7 is 19.<|step|>So it is \\boxed{19}.<|step|>"
    assert text(prompts, rendered.token_ids) == f"<|user|>12 + 7?<|end|><|assistant|>{told}<|end|>"
    tag = prompts.token_id("<|step|>")
    assert [rendered.token_ids[position] for position in rendered.positions] == [tag, tag]
    assert rendered.positions[-1] == len(rendered.token_ids) - 2


def test_tokenizer_comes_from_the_folder_for_any_model_type(prompts) -> None:
    """Beside a Qwen2 config, transformers' AutoTokenizer would split otherwise and lose every space."""
    assert text(prompts, prompts.encode("12 + 7\n\nis 19")) == "12 + 7\n\nis 19"


def test_a_system_message_comes_first(prompts) -> None:
    rendered = StepTagFormat(prompts, "<|step|>", system="Reason.").render("12 + 7?", STEPS)
    assert text(prompts, rendered.token_ids).startswith("<|system|>Reason.<|end|><|user|>")


def test_a_question_that_spells_the_tag_out_adds_no_score(prompts) -> None:
    steps = ("Say <|step|> twice <|step|>\n\n",)
    rendered = StepTagFormat(prompts, "<|step|>").render("What is <|step|>?", steps)
    assert len(rendered.positions) == 1
    assert "< |step|>?" in text(prompts, rendered.token_ids)


def test_a_wrong_step_tag_is_refused_at_the_start(prompts) -> None:
    with pytest.raises(EngineStartError, match="token '<extra_0>' is not in the vocabulary"):
        StepTagFormat(prompts, "<extra_0>")
    with pytest.raises(EngineStartError, match="in the tokenizer and 7 in the catalogue"):
        StepTagFormat(prompts, "<|step|>", tag_id=7)


def test_skywork_scores_a_step_at_its_last_newline(prompts) -> None:
    steps = ("line one\nline two\n\n", "three\n\n", "\n\n", "four")
    rendered = SkyworkFormat(prompts).render("12 + 7?", steps)
    assert text(prompts, rendered.token_ids) == "12 + 7?\nline one\nline two\nthree\n\nfour\n"
    newline = prompts.token_id("\n")
    assert [rendered.token_ids[position] for position in rendered.positions] == [newline] * 4
    read = [text(prompts, rendered.token_ids[: position + 1]) for position in rendered.positions]
    assert read[0].endswith("line two\n")
    assert read[1].endswith("three\n")
    assert read[3] == text(prompts, rendered.token_ids)


def test_a_tokenizer_without_a_template_serves_skywork_alone(prompts, tmp_path) -> None:
    prompts.tokenizer.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(EngineStartError, match="has no chat template"):
        ChatPrompts.load(str(tmp_path))
    bare = ChatPrompts.load(str(tmp_path), needs_template=False)
    assert SkyworkFormat(bare).render("q", ("a",)).positions == (3,)
