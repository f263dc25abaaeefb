"""An exported GPT continues prompts as its run does, and a folder that is imported again keeps its meaning."""

import json

import pytest
from tiny_huggingface import tiny_contents
from tiny_text import TEXTS, tiny_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from hornbook import load
from hornbook.checkpoint import Contents, save
from hornbook.errors import DataError
from hornbook.exchange.huggingface import read_folder, write_folder
from hornbook.exchange.restore import read_source
from hornbook.text.tokenizer import Tokenizer

PROMPTS = ["", "the cat", "a", "the cat sat on the mat", " 12\n"]
START = {"id": "<s>", "type_id": 0}
FOREIGN_FRAME = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": START}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [300], "tokens": ["<s>"]}},
}


def foreign_tokenizer():
    """GPT-2's tokens, but of a form that hornbook keeps as it is, with a post-processor that adds another token."""
    settings = json.loads(tiny_tokenizer().to_json())
    settings["normalizer"] = {"type": "NFC"}
    settings["added_tokens"].append({**settings["added_tokens"][0], "id": 300, "content": "<s>"})
    return Tokenizer.from_json(json.dumps(settings | {"post_processor": FOREIGN_FRAME}))


def contents_with(tokenizer, **changes):
    own = tiny_contents(**changes)
    return Contents(
        step=5, tensors=own.tensors, documents=own.documents, files={"tokenizer.json": tokenizer.to_json().encode()}
    )


TOKENIZERS = {"gpt": tiny_tokenizer, "foreign": foreign_tokenizer}


@pytest.fixture(params=TOKENIZERS)
def exported(request, tmp_path):
    """The checkpoint of a run with its tokenizer, and its export."""
    tokenizer = TOKENIZERS[request.param]()
    assert tokenizer.form == ("byte-bpe" if request.param == "gpt" else None)
    save(tmp_path / "run" / "checkpoints", contents_with(tokenizer, vocab_size=304))
    path, contents = read_source(tmp_path / "run", only={"model"})
    write_folder(tmp_path / "out", contents)
    return path, tmp_path / "out", tokenizer


def ours(path, prompts, **options):
    return load(path, device="cpu", compute="fp32").generate(prompts, temperature=0, output_length=10, **options)


def theirs(folder, prompts, *, at_once, **options):
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
    texts = []
    for batch in [prompts] if at_once else [[prompt] for prompt in prompts]:
        inputs = tokenizer(batch, return_tensors="pt", padding=at_once)
        outputs = model.generate(**inputs, do_sample=False, max_new_tokens=10, **options)
        texts += tokenizer.batch_decode(outputs[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return texts


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.3}], ids=str)
def test_greedy_texts_are_equal(exported, at_once, options):
    """Padding is the token with which every prompt starts, so a penalty is the same with and without it."""
    path, folder, _ = exported
    expected = ours(path, PROMPTS, **options)
    assert len(set(expected)) > 1, "the prompts matter"
    assert theirs(folder, PROMPTS, at_once=at_once, **options) == expected


def test_a_prompt_begins_like_a_document(exported):
    path, folder, tokenizer = exported
    found = AutoTokenizer.from_pretrained(folder)
    for prompt in PROMPTS:
        ids = [tokenizer.end_of_text_id, *tokenizer.encode(prompt)]
        assert found(prompt)["input_ids"] == ids == load(path).encode(prompt)
    assert json.loads((folder / "tokenizer_config.json").read_text())["add_bos_token"] is True
    generation = json.loads((folder / "generation_config.json").read_text())
    end = tokenizer.end_of_text_id
    assert [generation[f"{role}_token_id"] for role in ("bos", "eos", "pad")] == [end] * 3
    assert generation["suppress_tokens"] == list(range(tokenizer.vocab_size, 304))


def test_a_folder_that_is_imported_again(exported, tmp_path):
    path, folder, tokenizer = exported
    assert Tokenizer.load(folder).to_json() == tokenizer.to_json(), "a corpus built with it has the same tokens"
    expected = ours(path, PROMPTS)
    assert ours(folder, PROMPTS) == expected
    save(tmp_path / "again" / "checkpoints", read_folder(folder, with_source=True))
    again, contents = read_source(tmp_path / "again")
    assert ours(again, PROMPTS) == expected
    write_folder(tmp_path / "twice", contents)
    same = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
    assert [(tmp_path / "twice" / name).read_bytes() for name in same] == [
        (folder / name).read_bytes() for name in same
    ]


def test_what_transformers_saves_of_an_export(exported, tmp_path):
    path, folder, tokenizer = exported
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "saved")
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path / "saved")
    assert ours(tmp_path / "saved", PROMPTS) == ours(path, PROMPTS)
    assert Tokenizer.load(tmp_path / "saved").encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])


def test_a_published_model_gets_no_start_token(tmp_path):
    write_folder(tmp_path / "plain", tiny_contents())
    for name in ("tokenizer.json", "tokenizer_config.json"):  # as in the published GPT-2
        content = json.loads((tmp_path / "plain" / name).read_text())
        content.pop("add_bos_token", None)
        content |= {"post_processor": None} if name == "tokenizer.json" else {}
        (tmp_path / "plain" / name).write_text(json.dumps(content))
    path, contents = read_source(tmp_path / "plain")
    write_folder(tmp_path / "out", contents)
    for prompt in PROMPTS[1:]:
        ids = AutoTokenizer.from_pretrained(tmp_path / "out")(prompt)["input_ids"]
        assert ids == tiny_tokenizer().encode(prompt) == load(path).encode(prompt)
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["add_bos_token"] is False
    expected = ours(tmp_path / "plain", PROMPTS[1:])
    assert theirs(tmp_path / "out", PROMPTS[1:], at_once=True) == expected == ours(tmp_path / "out", PROMPTS[1:])


def test_settings_without_a_tokenizer_json_count(tmp_path):
    write_folder(tmp_path / "out", tiny_contents())
    (tmp_path / "out" / "tokenizer.json").unlink()
    assert load(tmp_path / "out").encode("a")[0] == tiny_tokenizer().end_of_text_id


FAULTY_FRAMES = [
    {"type": "TemplateProcessing", "single": [1], "pair": [], "special_tokens": {"hornbook.instead-of:{": 3}},
    {"type": "TemplateProcessing", "single": [3, 4], "special_tokens": {"hornbook.instead-of:{": {}}},
    {"type": "Sequence", "processors": 7},
    [],
]


@pytest.mark.parametrize("frame", FAULTY_FRAMES)
def test_a_faulty_post_processor(tmp_path, frame):
    settings = json.loads(tiny_tokenizer().to_json()) | {"post_processor": frame}
    with pytest.raises(DataError) as caught:
        Tokenizer.from_json(json.dumps(settings | {"normalizer": {"type": "NFC"}}))
    assert "\n" not in str(caught.value)
    write_folder(tmp_path / "out", tiny_contents())
    (tmp_path / "out" / "tokenizer.json").write_text(json.dumps(settings))
    assert load(tmp_path / "out").encode("a") == tiny_tokenizer().encode("a"), "GPT-2's ids need no post-processor"
