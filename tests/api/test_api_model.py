"""Models in Python: the same numbers as the tasks of `hornbook evaluate`, as the model itself and as transformers."""

import json
import sys
from pathlib import Path

import pytest
import torch
from tiny_encoder_runs import encoder_contents, encoder_tokenizer
from tiny_huggingface import tiny_contents, tiny_folder
from tiny_labelled import CONTEXT, QUESTIONS, word_pieces, write_jsonl, write_squad
from tiny_text import build_tiny, one_line, tiny_tokenizer

import hornbook
from hornbook.__main__ import main
from hornbook.checkpoint import Contents, save
from hornbook.config import ClassificationConfig, SpanConfig
from hornbook.errors import CheckpointError, UserError
from hornbook.evaluate import TaskInput
from hornbook.evaluate.tasks import run_task
from hornbook.exchange.huggingface import write_folder
from hornbook.exchange.restore import load_model
from hornbook.text.tokenizer import Tokenizer

CPU = torch.device("cpu")
TEXT, OTHER = "the cat sat", "story 1: the mat"


def saved(folder: Path, contents: Contents) -> Path:
    return save(folder / "checkpoints", contents)


@pytest.fixture
def gpt(tmp_path: Path) -> hornbook.Model:
    return hornbook.load(saved(tmp_path, tiny_contents(max_positions=64)), device="cpu", compute="fp32")


@pytest.fixture
def bert(tmp_path: Path) -> hornbook.Model:
    return hornbook.load(saved(tmp_path, encoder_contents("bert")), device="cpu", compute="fp32")


def refuses(error: type[Exception], *parts: str, call) -> bool:
    with pytest.raises(error) as caught:
        call()
    return one_line(caught.value, *parts)


def test_a_model_describes_itself(gpt: hornbook.Model, bert: hornbook.Model) -> None:
    assert gpt.is_causal and not bert.is_causal
    assert gpt.step == 5 and gpt.path.name == "step-00000005" and gpt.device == CPU
    assert gpt.tokenizer.digest == tiny_tokenizer().digest
    assert gpt.recipe.model.family == "gpt" and "gpt" in repr(gpt)


def test_whatever_the_commands_take_is_loaded(tmp_path: Path) -> None:
    contents = tiny_contents()
    checkpoint, theirs = saved(tmp_path / "run", contents), tiny_folder(tmp_path / "theirs")
    models = [hornbook.load(str(path), device="cpu") for path in (tmp_path / "run", checkpoint, theirs)]
    first, *others = [model.logits([1, 2, 3]) for model in models]
    assert all(torch.equal(first, other) for other in others)
    with pytest.raises(CheckpointError):
        hornbook.load(tmp_path / "nothing", device="cpu")
    assert refuses(UserError, "compute is 'fp8'", call=lambda: hornbook.load(checkpoint, compute="fp8"))


def test_a_text_becomes_the_ids_of_the_training(tmp_path: Path, gpt: hornbook.Model, bert: hornbook.Model) -> None:
    own = tiny_tokenizer()
    assert gpt.encode(TEXT) == [own.require_end_of_text(), *own.encode(TEXT)]
    exported = hornbook.load(tiny_folder(tmp_path / "theirs"), device="cpu")
    assert exported.encode(TEXT) == gpt.encode(TEXT)
    (tmp_path / "theirs" / "tokenizer.json").write_text(own.to_json())  # which adds no token in transformers
    published = hornbook.load(tmp_path / "theirs", device="cpu")
    assert published.encode(TEXT) == own.encode(TEXT)
    special = encoder_tokenizer().require_masking()
    ids = bert.encode("the [MASK] sat")
    assert (ids[0], ids[-1]) == (special.cls, special.sep) and ids.count(special.mask) == 1


def test_logits_are_those_of_the_model(gpt: hornbook.Model) -> None:
    ids = gpt.encode(TEXT)
    batch = {"tokens": torch.tensor([ids]), "positions": torch.arange(len(ids))[None]}
    with torch.no_grad():
        expected = gpt.module(
            lambda head, x_BTD, _: head.logits(x_BTD), batch | {"keys": torch.zeros(1, len(ids)).long()}
        )
    logits = gpt.logits(TEXT)
    assert logits.shape == (len(ids), 300) and logits.dtype == torch.float32 and not logits.requires_grad
    assert torch.equal(logits, expected[0])


@pytest.mark.parametrize("kind", ["gpt", "bert"])
def test_one_several_and_stacked_sequences_agree(kind: str, request: pytest.FixtureRequest) -> None:
    model: hornbook.Model = request.getfixturevalue(kind)
    ids, longer = model.encode(TEXT), model.encode(OTHER)
    one = model.logits(ids)
    for inputs in (TEXT, torch.tensor(ids), tuple(ids), torch.tensor(ids).numpy()):
        assert torch.equal(model.logits(inputs), one)
    for batch_size in (1, 8):
        first, second = model.logits([TEXT, OTHER], batch_size=batch_size)
        assert first.shape == one.shape and second.shape == (len(longer), one.shape[1])
        torch.testing.assert_close(first, one)
    stacked = model.logits(torch.tensor([ids, ids]))
    assert stacked.shape == (2, *one.shape)
    torch.testing.assert_close(stacked[1], one)


def test_the_loss_is_that_of_the_logits(gpt: hornbook.Model) -> None:
    sums = count = 0
    for text in (TEXT, OTHER):
        ids = torch.tensor(gpt.encode(text))
        log_probabilities = gpt.logits(text)[:-1].log_softmax(-1)
        sums -= float(log_probabilities.gather(1, ids[1:, None]).sum())
        count += len(ids) - 1
    assert gpt.loss([TEXT, OTHER]) == pytest.approx(sums / count, rel=1e-6)
    assert gpt.loss([TEXT, OTHER], batch_size=1) == pytest.approx(sums / count, rel=1e-6)
    assert gpt.loss([gpt.encode(TEXT), gpt.encode(OTHER)]) == gpt.loss([TEXT, OTHER])


def test_the_loss_is_that_of_the_task_bits_per_byte(tmp_path: Path) -> None:
    """A document that fits a window is scored alike, given the end-of-text token before it."""
    path, text = saved(tmp_path, tiny_contents(max_positions=64)), tmp_path / "story.txt"
    text.write_text(OTHER)
    build_tiny(tmp_path / "corpus", inputs=[text], validation=0.0)
    given = TaskInput(loaded=load_model(path, CPU), data=str(tmp_path / "corpus" / "train"))
    (expected,) = [row.value for row in run_task("bits_per_byte", given) if row.metric == "nats_per_token"]
    model = hornbook.load(path, device="cpu")
    assert model.loss(OTHER) == pytest.approx(expected, rel=1e-6)
    assert model.loss(OTHER) != pytest.approx(model.loss(TEXT), rel=1e-3)


def test_an_encoders_loss_is_the_task_pseudo_perplexity(tmp_path: Path) -> None:
    path, text = saved(tmp_path, encoder_contents("bert")), tmp_path / "text.txt"
    text.write_text("the old cat sees the river")
    given = TaskInput(loaded=load_model(path, CPU), data=str(text))
    (expected,) = [row.value for row in run_task("pseudo_perplexity", given) if row.metric == "nats_per_token"]
    assert hornbook.load(path, device="cpu").loss("the old cat sees the river") == pytest.approx(expected, rel=1e-6)


def test_an_encoders_loss_with_labels(bert: hornbook.Model) -> None:
    ids = torch.tensor(bert.encode("the [MASK] sat on the [MASK]"))
    labels = torch.full_like(ids, -100)
    places = (ids == bert.tokenizer.require_masking().mask).nonzero()[:, 0]
    labels[places] = torch.tensor([17, 23])
    expected = torch.nn.functional.cross_entropy(bert.logits(ids), labels)
    assert bert.loss(ids, labels=labels) == pytest.approx(float(expected), rel=1e-6)
    assert bert.loss([ids.tolist()], labels=[labels.tolist()]) == pytest.approx(float(expected), rel=1e-6)
    assert refuses(UserError, "labels and sequences differ in length", call=lambda: bert.loss(ids, labels=labels[1:]))
    assert refuses(UserError, "label 5000 is not", call=lambda: bert.loss(ids, labels=torch.full_like(ids, 5000)))
    assert refuses(UserError, "no token is scored", call=lambda: bert.loss(ids, labels=torch.full_like(ids, -100)))


def test_embeddings_pool_hidden_states(gpt: hornbook.Model, bert: hornbook.Model) -> None:
    ids, other = gpt.tokenizer.encode(TEXT), gpt.tokenizer.encode(OTHER)
    states = gpt.embed(TEXT, pooling="none")
    assert states.shape == (len(ids), 16) and states.dtype == torch.float32
    assert torch.equal(states, gpt.embed(ids, pooling="none"))
    assert torch.equal(gpt.embed(TEXT), states.mean(0))
    assert torch.equal(gpt.embed(TEXT, pooling="max"), states.max(0).values)
    assert torch.equal(gpt.embed(TEXT, pooling="last"), states[-1])
    torch.testing.assert_close(gpt.embed(TEXT, normalize=True), states.mean(0) / states.mean(0).norm())
    several = gpt.embed([TEXT, OTHER], pooling="last")
    assert several.shape == (2, 16)
    torch.testing.assert_close(several[0], states[-1])
    assert [len(each) for each in gpt.embed([TEXT, OTHER], pooling="none")] == [len(ids), len(other)]
    assert torch.equal(bert.embed(TEXT, pooling="cls"), bert.embed(TEXT, pooling="none")[0])
    assert refuses(
        UserError,
        "`pooling='cls'` is not for a decoder; expected one of mean, max, last",
        call=lambda: gpt.embed(TEXT, pooling="cls"),
    )
    assert refuses(UserError, "expected one of mean, cls, max", call=lambda: bert.embed(TEXT, pooling="last"))


@pytest.mark.parametrize("family", ["gpt", "bert", "roberta"])
def test_transformers_gives_the_same_logits_loss_and_hidden_states(tmp_path: Path, family: str) -> None:
    contents = tiny_contents() if family == "gpt" else encoder_contents(family)
    model = hornbook.load(saved(tmp_path, contents), device="cpu", compute="fp32")
    theirs = model.to_transformers()
    ids = torch.tensor([model.encode(TEXT)])
    with torch.no_grad():
        found = theirs(input_ids=ids, labels=ids if family == "gpt" else None, output_hidden_states=True)
    logits = found.prediction_logits if "prediction_logits" in found else found.logits
    assert not theirs.training and theirs.dtype == torch.float32
    torch.testing.assert_close(model.logits(ids), logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.embed(ids, pooling="none"), found.hidden_states[-1], atol=1e-5, rtol=1e-5)
    if family == "gpt":
        assert model.loss(ids) == pytest.approx(float(found.loss), rel=1e-5)


def test_an_export_has_the_present_weights(tmp_path: Path, gpt: hornbook.Model) -> None:
    with torch.no_grad():
        gpt.module.embedding.tokens.mul_(2.0)
    files = gpt.export(tmp_path / "theirs", dtype="fp32", license="mit")
    assert {path.name for path in files} >= {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert "license: mit" in (tmp_path / "theirs" / "README.md").read_text()
    again = hornbook.load(tmp_path / "theirs", device="cpu", compute="fp32")
    assert torch.equal(again.module.embedding.tokens, gpt.module.embedding.tokens)
    bad = {"format": "onnx"}, {"dtype": "int8"}, {"format": "gguf", "shard_size": 1e6}
    parts = "format is 'onnx'; expected transformers or gguf", "dtype is 'int8'; expected fp32", "is not split"
    for options, part in zip(bad, parts, strict=True):
        assert refuses(UserError, part, call=lambda options=options: gpt.export(tmp_path / "bad", **options))
    assert not (tmp_path / "bad").exists()


def test_to_transformers_leaves_out_what_was_never_trained(tmp_path: Path) -> None:
    contents = encoder_contents("bert")
    contents.documents["untrained"] = ["head.pooler.weight", "head.pooler.bias", "head.classifier.weight"]
    contents.documents["untrained"] += ["head.classifier.bias"]
    write_folder(tmp_path / "theirs", contents, warn=lambda line: None)
    model = hornbook.load(tmp_path / "theirs", device="cpu")
    assert type(model.to_transformers()).__name__ == "BertForMaskedLM"


def test_without_transformers_one_line_names_the_extra(gpt: hornbook.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert refuses(UserError, "to_transformers needs transformers", "hornbook[transformers]", call=gpt.to_transformers)


def test_a_model_without_a_tokenizer_takes_ids(tmp_path: Path) -> None:
    contents = tiny_contents()
    contents.files.clear()
    model = hornbook.load(saved(tmp_path, contents), device="cpu")
    assert model.logits([1, 2]).shape == (2, 300) and len(model.generate([1, 2], output_length=3)) == 3
    assert refuses(CheckpointError, "no tokenizer", call=lambda: model.logits(TEXT))


@pytest.mark.parametrize(
    ("inputs", "part"),
    [
        ([], "the input is empty"),
        ("", None),
        ([[]], "a sequence of ids is empty"),
        ([1, 300], "id 300, but the model's vocabulary is 0 to 299"),
        ([[1], [-1]], "sequence 2 has id -1"),
        (list(range(65)), "65 tokens; expected 1 to 64, the model's positions"),
        ([TEXT, [1]], None),
        (torch.tensor([0.5]), "float32 in 1 dimensions"),
        (torch.zeros(1, 1, 1, dtype=torch.int64), "int64 in 3 dimensions"),
        (7, "of type int"),
        (None, "of type NoneType"),
        (torch.zeros(0, dtype=torch.int64), "empty"),
        (b"the", "the input has bytes; expected a text"),
        ([b"the", b"cat"], "decode the bytes, as in text.decode()"),
        (bytearray(b"the"), "the input has bytes"),
        (memoryview(b"the"), "the input has bytes"),
    ],
)
def test_bad_inputs_are_one_line(gpt: hornbook.Model, inputs: object, part: str | None) -> None:
    if part is None:
        gpt.logits(inputs)
    else:
        assert refuses(UserError, part, call=lambda: gpt.logits(inputs))


def test_bytes_are_no_text(gpt: hornbook.Model, bert: hornbook.Model) -> None:
    for model in (gpt, bert):
        for call in (model.encode, model.embed, model.loss, model.tokenizer.encode):
            assert refuses(UserError, "bytes", "decode", call=lambda call=call: call(b"the"))  # type: ignore[misc]
    assert refuses(UserError, "bytes", call=lambda: bert.fill(b"the [MASK]"))
    assert refuses(UserError, "bytes", call=lambda: gpt.generate(b"the"))
    assert refuses(UserError, "the stop strings are (10,); expected text", call=lambda: gpt.generate("a", stop=b"\n"))
    assert refuses(UserError, "a text is of type bytes", call=lambda: gpt.generate("a", stop_token=b"e"))
    tokenizer = gpt.tokenizer
    for call in (tokenizer.encode_batch, tokenizer.encode_with_offsets):
        assert refuses(UserError, "a text is of type bytes; expected a string", call=lambda call=call: call([b"a"]))
    for ids in ("the", b"the", [0.5], 3):
        assert refuses(UserError, "expected a sequence of token ids", call=lambda ids=ids: tokenizer.decode(ids))


@pytest.mark.parametrize(("head", "shape"), [("classification", (3,)), ("span", (5, 2))])
def test_a_fine_tuned_head_has_logits_of_its_own(tmp_path: Path, head: str, shape: tuple[int, ...]) -> None:
    contents = encoder_contents("bert", head=head, **({"num_labels": 3} if head == "classification" else {}))
    labels = {"labels": ["a", "b", "c"]} if head == "classification" else {}
    contents.documents["recipe"]["objective"] = {"name": head, **labels}
    model = hornbook.load(saved(tmp_path, contents), device="cpu", compute="fp32")
    ids = [2, 9, 8, 7, 3]
    logits = model.logits(ids)
    assert logits.shape == shape and model.logits([ids, ids[:4]])[0].shape == shape
    with torch.no_grad():
        found = model.to_transformers()(input_ids=torch.tensor([ids]))
    expected = (
        found.logits[0] if head == "classification" else torch.stack([found.start_logits, found.end_logits], -1)[0]
    )
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert refuses(UserError, "was fine-tuned and does not predict tokens", call=lambda: model.loss(ids))


def test_dropout_is_off_and_the_mode_is_left_alone(tmp_path: Path) -> None:
    model = hornbook.load(saved(tmp_path, tiny_contents(residual_dropout=0.5)), device="cpu")
    expected = model.logits(TEXT)
    model.module.train()
    assert torch.equal(model.logits(TEXT), expected) and model.module.training
    assert model.generate("the", output_length=4) and model.module.training


def test_public_tokenizer() -> None:
    assert hornbook.Tokenizer is Tokenizer


def fine_tuned(folder: Path, objective: object, **changes: object) -> hornbook.Model:
    contents = encoder_contents("bert", word_pieces(), objective, **changes)
    return hornbook.load(saved(folder, contents), device="cpu", compute="fp32")


def lines_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict]:
    capsys.readouterr()
    assert main(["predict", *words, "--threads", "1"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_predicted_classes_are_those_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    objective = ClassificationConfig(labels=("emma", "moby", "pride"))
    model = fine_tuned(tmp_path, objective, head="classification", num_labels=3)
    texts = ["the whale", "a ship and its captain hunt the whale " * 20, "a ball"]
    file = write_jsonl(tmp_path / "texts.jsonl", [{"text": text} for text in texts])
    found = model.predict(texts, batch_size=2)
    (record,) = caplog.records
    assert "1 of 3 texts is longer" in record.message and "classified without the end" in record.message
    assert [each.as_json() for each in found] == lines_of(capsys, str(model.path), file)
    short = model.predict(texts, window=3)
    assert [each.as_json() for each in short] == lines_of(capsys, str(model.path), file, "--window", "3")
    assert "3 of 3 texts are longer than 3 tokens" in caplog.records[1].message
    alone = model.predict(texts[0], top_k=1)
    assert alone.probabilities == pytest.approx({found[0].label: found[0].probability})
    assert refuses(UserError, "1 texts have 1 second texts", call=lambda: model.predict("a", "b"))
    assert refuses(UserError, "is blank", call=lambda: model.predict([" "]))


def test_predicted_pairs_are_those_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objective = ClassificationConfig(labels=("no", "yes"), second_text="b")
    model = fine_tuned(tmp_path, objective, head="classification", num_labels=2)
    file = write_jsonl(tmp_path / "pairs.jsonl", [{"text": "the whale", "b": "a ship"}])
    assert model.predict("the whale", "a ship").as_json() == lines_of(capsys, str(model.path), file)[0]
    assert refuses(UserError, "expected one for each text", call=lambda: model.predict(["a", "b"], ["c"]))


def test_predicted_answers_are_those_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], gpt: hornbook.Model, bert: hornbook.Model
) -> None:
    rules = SpanConfig(max_question_tokens=8, document_stride=8)
    model = fine_tuned(tmp_path / "spans", rules, head="span", max_positions=24)
    asked = [one["question"] for one in QUESTIONS]
    expected = lines_of(capsys, str(model.path), write_squad(tmp_path / "squad.json", QUESTIONS))
    found = model.predict(asked, [CONTEXT] * 3)
    assert [{"id": f"q{number}", **each.as_json()} for number, each in enumerate(found)] == expected
    assert model.predict(asked[0], CONTEXT).text == found[0].text and model.predict([]) == []
    assert refuses(
        UserError, "top_k applies only to classifiers", call=lambda: model.predict(asked[0], CONTEXT, top_k=1)
    )
    assert refuses(
        UserError, "was trained with 'causal_lm' and has no labels: fine-tune it", call=lambda: gpt.predict("a")
    )
    assert refuses(UserError, "and has no labels: fine-tune it", call=lambda: bert.predict("a"))
