"""Ids: cached as recomputed, a batch as one by one, beyond the position table, whatever the mix of lengths."""

import pytest
import torch
from cases import mostly_slow
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_generation import greedy, lively_model, logits_after

from hornbook.generate import Sampling, draws_of, generate, generate_batch, make_decoder
from hornbook.generate.decoder import CachedDecoder, PlainDecoder
from hornbook.ops.attention import document_mask

GREEDY = Sampling(temperature=0.0)
FREE = Sampling(temperature=1.0, top_k=None)
SHAPES = {
    "two layers": {},
    "one layer, one head": {"num_layers": 1, "num_heads": 1},
    "many small heads": {"num_heads": 8, "hidden_size": 32},
    "own head size and feed-forward": {"head_size": 5, "feed_forward_size": 40, "activation": "relu_squared"},
    "vocabulary a multiple of 64": {"vocab_size": 128, "activation": "gelu"},
    "three positions": {"max_positions": 3},
    "one position": {"max_positions": 1},
    "more than one block of queries": {"max_positions": 300},
}


@pytest.fixture(scope="module")
def model():
    return lively_model()


def batch_of(model, prompts, *, num_tokens, sampling=GREEDY, seed=0, decoder=None, **options):
    return generate_batch(
        decoder or make_decoder(model),
        prompts,
        num_tokens=num_tokens,
        vocab_size=model.vocab_size,
        draws=[draws_of(seed, prompt) for prompt in prompts],
        sampling=sampling,
        **options,
    )


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("length", mostly_slow([5, 60, 1, 24], 2))
def test_greedy_equals_a_forward_pass_a_token(shape, length):
    """Also when the prompt, or what grows from it, is longer than the position table."""
    model = lively_model(**shape)
    prompt = [index % 70 for index in range(length)]
    expected = greedy(model, prompt, 60)
    assert generate(model, prompt, num_tokens=60, seed=0, sampling=GREEDY) == expected
    assert len(set(expected)) > min(5, model.max_positions - 1), "a text that stands still tests little"


def test_past_a_long_position_table():
    """From 290 tokens past 300, where the last 150 are read again, to 470."""
    model = lively_model(max_positions=300)
    prompt = [index * 7 % 70 for index in range(290)]
    assert generate(model, prompt, num_tokens=180, seed=0, sampling=GREEDY) == greedy(model, prompt, 180)


@settings(max_examples=12)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=7),
    num_tokens=st.integers(1, 70),
    sampling=st.sampled_from([GREEDY, FREE, Sampling(top_p=0.9, repetition_penalty=1.3)]),
    seed=st.integers(0, 100),
)
def test_a_batch_gives_what_each_prompt_gives_alone(model, lengths, num_tokens, sampling, seed):
    prompts = [[(seed + 3 * row + 11 * place) % 70 for place in range(length)] for row, length in enumerate(lengths)]
    together = batch_of(model, prompts, num_tokens=num_tokens, sampling=sampling, seed=seed)
    options = {"num_tokens": num_tokens, "sampling": sampling, "seed": seed}
    assert together == [generate(model, prompt, **options) for prompt in prompts]
    assert together == batch_of(model, prompts, decoder=PlainDecoder(model), **options)


def test_rows_that_end_leave_the_others_alone(model):
    """Rows end by the stop id and by the callback, at different tokens; what is left equals the texts that did not."""
    prompts = [[row, 5, 9][: 1 + row % 3] for row in range(8)]
    whole = batch_of(model, prompts, num_tokens=60, sampling=FREE)
    stop_id = whole[3][20]
    ends = {1: 1, 4: 7, 6: 30}
    heard = [[] for _ in prompts]

    def on_token(row, token):
        heard[row].append(token)
        return len(heard[row]) == ends.get(row)

    cut = batch_of(model, prompts, num_tokens=60, sampling=FREE, stop_id=stop_id, on_token=on_token)
    for row, ids in enumerate(whole):
        stop = ids.index(stop_id) if stop_id in ids else 60
        end = min(ends.get(row, 60), stop)
        assert cut[row] == ids[:end]
        assert heard[row] == ids[:end] + [stop_id] * (stop < ends.get(row, 60))


def test_the_cache_stays_where_it_is(model):
    """No tensor moves or grows while rows grow, outgrow the positions, and leave."""
    decoder = make_decoder(model)
    assert isinstance(decoder, CachedDecoder)
    decoder.start([[1, 2, 3], [4], [5] * 20], 200)
    places = [tensor.data_ptr() for tensor in decoder.cache.tensors.values()]
    sizes = [tensor.untyped_storage().nbytes() for tensor in decoder.cache.tensors.values()]
    tokens_in_memory = 24 + 24 // 2 + 1
    assert sizes == [3 * 2 * 2 * tokens_in_memory * 8 * 4] * 2, "rows, key and value, heads, columns, K, bytes"
    for number in range(100):
        if number == 50:
            decoder.keep([0, 2])
        decoder.advance([number % 70] * (3 if number < 50 else 2))
        assert [tensor.data_ptr() for tensor in decoder.cache.tensors.values()] == places
        assert [tensor.untyped_storage().nbytes() for tensor in decoder.cache.tensors.values()] == sizes


def test_texts_that_fit_need_no_more_columns_than_tokens(model):
    decoder = make_decoder(model)
    decoder.start([[1, 2, 3]], 10)
    assert decoder.cache.capacity == 13


def test_decoders_agree_in_logits(model):
    """To six digits, for rows of different lengths, past the position table, after rows have left."""
    prompts = [[1, 2, 3], [4], [5] * 20, [6] * 24]
    decoders = [make_decoder(model), PlainDecoder(model)]
    ours, plain = (decoder.start(prompts, 60) for decoder in decoders)
    for number in range(60):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)
        if number == 30:
            for decoder in decoders:
                decoder.keep([3, 1])
        ids = [number % 70, 3, 5, 7][: 4 if number < 30 else 2]
        ours, plain = (decoder.advance(ids) for decoder in decoders)


def test_bfloat16_is_as_exact_as_the_forward_pass():
    """Both are compared with fp32: their mean errors differ by a tenth at most."""
    precise, rough = (lively_model(compute_dtype=dtype, hidden_size=64) for dtype in (torch.float32, torch.bfloat16))
    decoders = [PlainDecoder(precise), make_decoder(rough), PlainDecoder(rough)]
    logits = [decoder.start([[1, 2, 3], [4], [5] * 20], 40) for decoder in decoders]
    errors = torch.zeros(2)
    for number in range(40):
        errors += torch.stack([(logits[0] - other).abs().mean() for other in logits[1:]])
        assert logits[1].dtype == torch.float32
        logits = [decoder.advance([number, 3, 5]) for decoder in decoders]
    assert 0 < errors[0] < 1.1 * errors[1]


def test_a_long_prompt_is_cut_from_the_left(model):
    prompt = [index % 70 for index in range(100)]
    options = {"num_tokens": 5, "seed": 1, "sampling": GREEDY}
    assert generate(model, prompt, **options) == generate(model, [9] * 50 + prompt[-24:], **options)


def test_ids_are_a_function_of_the_seed(model):
    options = {"num_tokens": 20, "sampling": FREE}
    first = generate(model, [1, 2], seed=1, **options)
    torch.manual_seed(99)
    assert generate(model, [1, 2], seed=1, **options) == first
    assert generate(model, [1, 2], seed=2, **options) != first


def test_fewer_tokens_are_the_beginning_of_more(model):
    texts = [generate(model, [1], num_tokens=count, seed=3) for count in (0, 1, 7, 20)]
    assert [len(text) for text in texts] == [0, 1, 7, 20]
    assert all(texts[-1][: len(text)] == text for text in texts)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 1e6])
def test_padding_is_never_drawn(model, temperature):
    sampling = Sampling(temperature=temperature, top_k=None)
    assert max(generate(model, [1], num_tokens=60, seed=0, sampling=sampling)) < 70


def test_stop_id_ends_the_text_and_is_not_in_it(model):
    ids = generate(model, [1], num_tokens=40, seed=3)
    stop = ids[10]
    assert generate(model, [1], num_tokens=40, seed=3, stop_id=stop) == ids[: ids.index(stop)]


@pytest.mark.parametrize("penalty", [1.5, 0.7])
def test_a_penalty_acts_on_what_the_text_has(model, penalty):
    """Against the formula, token by token; the prompt counts, and what the window has forgotten."""
    text = [1, 2]
    for _ in range(40):
        logits = logits_after(model, window_of(text, num_prompt=2))
        for seen in set(text):
            logits[seen] = logits[seen] / penalty if logits[seen] > 0 else logits[seen] * penalty
        text.append(int(logits.argmax()))
    sampling = Sampling(temperature=0.0, repetition_penalty=penalty)
    assert generate(model, [1, 2], num_tokens=40, seed=0, sampling=sampling) == text[2:]
    assert text[2:] != generate(model, [1, 2], num_tokens=40, seed=0, sampling=GREEDY)


def window_of(text, num_prompt):
    """What a model of 24 positions has in view of a text."""
    length = num_prompt
    for _ in text[num_prompt:]:
        length = length + 1 if length < 24 else 12
    return text[-length:]


@pytest.mark.parametrize("training", [True, False])
def test_model_keeps_its_mode_and_its_weights(training):
    model = lively_model()
    model.train(training)
    before = {name: parameter.clone() for name, parameter in model.own_parameters()}
    ids = generate(model, [1], num_tokens=30, seed=0)
    assert model.training is training
    assert all(torch.equal(before[name], parameter) for name, parameter in model.own_parameters())
    assert all(parameter.is_contiguous() and parameter.requires_grad for _, parameter in model.own_parameters())
    assert ids == generate(model.eval(), [1], num_tokens=30, seed=0), "dropout is off, whatever the mode"


def test_the_padding_mask_is_one_of_two_documents():
    is_token = torch.tensor([[False, False, True, True]])
    expected = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    assert document_mask(is_token)[0, 0].int().tolist() == expected


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_keeps_what_it_would_compute_again(dtype):
    """Unequal prompts past the position table; then a batch with every option on."""
    model = lively_model(compute_dtype=dtype, hidden_size=64).to("cuda")
    model.tie()
    prompts = [[1, 2, 3], [4], [5] * 20]
    decoders = [make_decoder(model), PlainDecoder(model)]
    ours, plain = (decoder.start(prompts, 40) for decoder in decoders)
    for number in range(40):
        assert (ours - plain).abs().max() < (1e-3 if dtype == torch.float32 else 0.2) * plain.std()
        ours, plain = (decoder.advance([number, 3, 5]) for decoder in decoders)
    sampling = Sampling(top_p=0.9, repetition_penalty=1.3)
    assert [len(ids) for ids in batch_of(model, prompts, num_tokens=60, sampling=sampling)] == [60] * 3


def test_ids_that_a_tokenizer_lacks_are_not_chosen():
    model = lively_model()
    assert max(generate(model, [1], num_tokens=60, seed=0, sampling=FREE)) >= 40
    assert max(generate(model, [1], num_tokens=60, seed=0, sampling=FREE, vocab_size=40)) < 40
    free, wide = (generate(model, [1], num_tokens=60, seed=0, sampling=FREE, vocab_size=size) for size in (None, 999))
    assert free == wide
