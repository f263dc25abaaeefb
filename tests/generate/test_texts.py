"""Texts: prompts cut and refused, stop strings, why a text ended, what was heard of it, and what it took."""

from dataclasses import replace
from functools import cache

import pytest
from plain_generation import lively_model
from tiny_text import one_line, tiny_tokenizer

from hornbook.errors import UserError
from hornbook.generate import GenerationConfig, Sampling, Text, TextWriter, generate

FREE = Sampling(temperature=1.0, top_k=None)
OPTIONS = GenerationConfig(output_length=40, temperature=1.0, top_k=None, seed=3)


@cache
def model():
    return lively_model(vocab_size=300, max_positions=32)


def writer(**changes) -> TextWriter:
    return TextWriter(model(), tiny_tokenizer(), replace(OPTIONS, **changes))


def write(prompt: str = "the cat", on_text=None, sample: int = 0, **changes) -> Text:
    chosen = writer(**changes)
    (text,) = chosen.write([chosen.request(prompt, sample=sample)], on_text=on_text)
    return text


def test_a_text_is_that_of_its_ids():
    tokenizer = tiny_tokenizer()
    ids = [tokenizer.end_of_text_id, *tokenizer.encode("the cat")]
    expected = generate(model(), ids, num_tokens=40, seed=3, sampling=FREE)
    text = write()
    assert text.text == tokenizer.decode(expected)
    assert (text.prompt, text.tokens, text.finish_reason, text.sample) == ("the cat", 40, "length", 0)
    assert text.seconds > 0


def test_texts_do_not_depend_on_their_batch():
    chosen = writer()
    prompts = ["", "the cat sat on the mat, the cat sat", "the", "the cat", "é😀", "", "story 7"]
    requests = [chosen.request(prompt, sample=number) for number, prompt in enumerate(prompts)]
    together = [text.text for text in chosen.write(requests)]
    assert together == [write(prompt, sample=number).text for number, prompt in enumerate(prompts)]
    assert together[0] != together[5], "another sample of the same prompt"
    backwards = [text.text for text in chosen.write(requests[::-1])]
    assert backwards == together[::-1]


def test_the_pieces_make_up_the_text():
    chosen = writer()
    heard = {0: "", 1: ""}

    def listen(row, piece):
        assert piece
        heard[row] += piece

    texts = chosen.write([chosen.request("the"), chosen.request("a much longer prompt")], on_text=listen)
    assert [text.text for text in texts] == list(heard.values())


def test_a_stop_string_across_tokens():
    """Any three characters of a text end it before their first place, wherever tokens begin and end."""
    whole = write(output_length=40).text
    for start in range(0, len(whole) - 3, 5):
        stop = whole[start : start + 3]
        text = write(stop=("never to be found", stop))
        assert (text.text, text.finish_reason) == (whole[: whole.index(stop)], "stop_string")
        assert tiny_tokenizer().decode(generate_ids(text.tokens)).startswith(text.text + stop)
        assert stop not in tiny_tokenizer().decode(generate_ids(text.tokens - 1))


def generate_ids(num_tokens):
    tokenizer = tiny_tokenizer()
    ids = [tokenizer.end_of_text_id, *tokenizer.encode("the cat")]
    return generate(model(), ids, num_tokens=num_tokens, seed=3, sampling=FREE)


def test_a_stop_token():
    ids = generate_ids(40)
    tokens = [tiny_tokenizer().decode([token]) for token in ids]
    at = next(n for n, token in enumerate(tokens) if token.isascii() and tiny_tokenizer().encode(token) == [ids[n]])
    text, end = write(stop_token=tokens[at]), ids.index(ids[at])
    assert (text.text, text.tokens, text.finish_reason) == (tiny_tokenizer().decode(ids[:end]), end, "stop_token")


def test_half_a_character_at_the_end_is_shown_as_such():
    """As decoding all ids would have it."""
    for length in range(1, 40):
        assert write(output_length=length).text == tiny_tokenizer().decode(generate_ids(length))


def test_a_prompt_begins_a_document_if_the_window_has_space():
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode("the cat sat on the mat")
    assert len(ids) > 4
    whole = writer().request("the cat sat on the mat")
    assert (whole.ids, whole.num_cut) == ((tokenizer.end_of_text_id, *ids), 0)
    exact = writer(input_length=len(ids)).request("the cat sat on the mat")
    assert (exact.ids, exact.num_cut) == (tuple(ids), 0)
    cut = writer(input_length=3).request("the cat sat on the mat")
    assert (cut.ids, cut.num_cut) == (tuple(ids[-3:]), len(ids) - 3)
    assert writer().request("").ids == (tokenizer.end_of_text_id,)


def test_a_prompt_may_begin_anywhere():
    """An empty prompt holds no token, so a text begins with the end of another in any case."""
    tokenizer, chosen = tiny_tokenizer(), writer(start_token=False)
    assert chosen.request("the cat").ids == tuple(tokenizer.encode("the cat"))
    assert chosen.request("").ids == (tokenizer.end_of_text_id,)


def test_a_prompt_that_does_not_fit_is_refused():
    with pytest.raises(UserError) as caught:
        writer().request("the cat sat on the mat, " * 20, place="p.txt, line 3")
    assert one_line(caught.value, "p.txt, line 3 has ", "but the model has 32 positions", "`input_length=32`")


def test_only_the_tokenizers_ids_are_written():
    """The model has more than the tokenizer, and its other rows would win every draw."""
    large = lively_model(vocab_size=330, max_positions=32)
    large.embedding.tokens.data[300:] *= 100
    chosen = TextWriter(large, tiny_tokenizer(), OPTIONS)
    assert chosen.write([chosen.request("the cat")])[0].tokens == 40


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_length": 0}, "output_length is 0; expected 1 or more"),
        ({"input_length": 0}, "input_length is 0; expected 1 or more"),
        ({"input_length": 33}, "the input length is 33; expected 1 to 32, the model's positions"),
        ({"stop": ("a", "")}, "`stop` is empty"),
        ({"stop": (b"a",)}, "the stop strings are (b'a',); expected text"),
        ({"stop_token": "the cat"}, '`stop_token` "the cat" is '),
    ],
)
def test_options_out_of_range(changes, message):
    with pytest.raises(UserError) as caught:
        writer(**changes)
    assert one_line(caught.value, message)


def test_a_tokenizer_of_another_model():
    small = lively_model(vocab_size=280)
    with pytest.raises(UserError, match=r"ends texts by token 299, but the model's vocabulary is 0 to 279"):
        TextWriter(small, tiny_tokenizer(), OPTIONS)


def test_an_interrupt_ends_the_text_and_leaves_the_writer_usable():
    """As Ctrl-C does: the exception comes from anywhere inside."""
    chosen = writer()
    request = chosen.request("the cat")
    pieces = []

    def listen(row, piece):
        pieces.append(piece)
        if len(pieces) == 5:
            raise KeyboardInterrupt

    (text,) = chosen.write([request], on_text=listen, interruptible=True)
    assert text.finish_reason == "interrupted"
    assert write().text.startswith(text.text)
    pieces.clear()
    with pytest.raises(KeyboardInterrupt):
        chosen.write([request], on_text=listen)
    assert chosen.write([request])[0].text == write().text


def test_timing_adds_up():
    chosen = writer()
    assert chosen.timing.summary()["tokens_per_second"] is None
    for _ in range(2):
        chosen.write([chosen.request("the"), chosen.request("the cat")])
    summary = chosen.timing.summary()
    assert (summary["texts"], summary["tokens"], chosen.timing.batches, chosen.timing.steps) == (4, 160, 2, 78)
    later = summary["seconds"] - 2 * summary["first_token_seconds"]
    assert summary["seconds_per_token"] == pytest.approx(later / 78, abs=1e-5)
    assert summary["tokens_per_second"] == pytest.approx(160 / summary["seconds"], rel=1e-3)


def test_a_text_as_json():
    text = Text(prompt="a", sample=1, text="b", tokens=2, finish_reason="length", seconds=0.12345678)
    assert text.as_json() == {
        "prompt": "a",
        "sample": 1,
        "text": "b",
        "tokens": 2,
        "finish_reason": "length",
        "seconds": 0.123457,
    }
