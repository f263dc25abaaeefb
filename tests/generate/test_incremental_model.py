"""Which models keep keys and values, that they compute what the training path does, and that others still write."""

import pytest
import torch
from tiny import hidden_states, randomize, tiny_config, tiny_model
from torch import nn

from hornbook.generate import Sampling, generate, make_decoder
from hornbook.generate.decoder import CachedDecoder, PlainDecoder, _warn_once
from hornbook.generate.incremental_model import IncrementalModel, incremental
from hornbook.model import LanguageModel, initialize
from hornbook.model.block import PreNormBlock
from hornbook.model.forward import forward_resident
from hornbook.model.head import CausalHead
from hornbook.model.layers import Embedding, Linear
from hornbook.ops.layers import linear

GREEDY = Sampling(temperature=0.0)


class ShiftBlock(nn.Module):
    """A causal block without attention: it adds half of the token before."""

    def forward(self, x_BTD, context):
        return x_BTD + 0.5 * nn.functional.pad(x_BTD, (0, 0, 1, 0))[:, :-1]


class LoudBlock(PreNormBlock):
    """Would be mistaken for its parent if the parent's cached path served subclasses."""

    def forward(self, x_BTD, context):
        return super().forward(x_BTD, context) * 1.5


class LoudLinear(Linear):
    """Doubles its output: a linear map without an incremental form."""

    def forward(self, x):
        return 2 * linear(x, self.weight, self.bias)


class SameLinear(Linear):
    """Changes nothing."""


class ForeignLinear(nn.Linear):
    """PyTorch's own, which knows nothing of incremental forms."""

    draw, is_uniform = Linear.draw, False

    def __init__(self, num_in, num_out, *, std, bias=True):
        super().__init__(num_in, num_out, bias)
        self.std = std


class BackwardsModel(LanguageModel):
    """Has a way of its own through its blocks."""

    def forward(self, use, batch):
        x_BTD = self.embedding(batch["tokens"], batch["positions"], batch["keys"])
        for block in reversed(self.blocks):
            x_BTD = block(x_BTD, {"keys": batch["keys"]})
        return self.head(use, x_BTD, batch)


class QuietHead(CausalHead):
    """Halves its logits."""

    def logits(self, x_ND):
        return super().logits(x_ND) / 2


def model_of(blocks, *, kind=LanguageModel, head=CausalHead, **changes) -> LanguageModel:
    config = tiny_config(**changes)
    embedding = Embedding(70, 24, 16, dropout=0.0, std=0.3, compute_dtype=torch.float32)
    model = kind(embedding, blocks, head(16, 70, epsilon=config.layer_norm_epsilon), max_positions=24)
    initialize(model, 1)
    randomize(model)
    return model.eval()


def plain_blocks() -> list[nn.Module]:
    return [PreNormBlock(tiny_config(), index) for index in range(2)]


OTHERS = {
    "no attention": lambda: model_of([ShiftBlock()]),
    "one block of several": lambda: model_of([*plain_blocks(), ShiftBlock()]),
    "a subclass": lambda: model_of([LoudBlock(tiny_config(), 0)]),
    "another trunk": lambda: model_of(plain_blocks(), kind=BackwardsModel),
}


def replaced_part() -> LanguageModel:
    """A feed-forward of which nobody says that it maps each token alone."""
    model = model_of(plain_blocks())
    model.blocks[1].feed_forward = nn.Sequential(nn.Linear(16, 16))
    return model


def method_of_an_object() -> LanguageModel:
    model = model_of(plain_blocks())
    block = model.blocks[1]
    block.forward = lambda x_BTD, context: 1.5 * PreNormBlock.forward(block, x_BTD, context)
    return model


KEPT_BY = {
    "no attention": "blocks.0, ShiftBlock,",
    "one block of several": "blocks.2, ShiftBlock,",
    "a subclass": "blocks.0, LoudBlock,",
    "another trunk": "BackwardsModel",
    "a replaced part": "blocks.1, PreNormBlock,",
    "a method of an object": "blocks.1, PreNormBlock,",
}


@pytest.mark.parametrize("build", [*OTHERS.values(), replaced_part, method_of_an_object], ids=KEPT_BY)
def test_models_that_keep_nothing_say_so_once(build, request, caplog):
    _warn_once.cache_clear()
    model = build()
    make_decoder(model)
    make_decoder(model)
    kept_by = KEPT_BY[request.node.callspec.id]
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [f"generation computes the whole window for every token: {kept_by} keeps no keys and values"]


def linears_of(model: LanguageModel) -> list[str]:
    return [name for name, module in model.named_modules() if type(module) is Linear]


@pytest.mark.parametrize("kind", [SameLinear, LoudLinear, ForeignLinear])
def test_a_linear_of_ones_own_keeps_the_cache(kind, caplog):
    """Replaced by name in one block, given to the other: the cached text is the text without a cache."""
    _warn_once.cache_clear()
    model = model_of([PreNormBlock(tiny_config(), 0), PreNormBlock(tiny_config(), 1, make_linear=kind)])
    names = linears_of(model)
    assert names == [f"blocks.0.{name}" for name in ("attention.out", "feed_forward.up", "feed_forward.down")]
    for name in names:
        old = model.get_submodule(name)
        model.set_submodule(name, kind(old.in_features, old.out_features, std=old.std))
        model.get_submodule(name).load_state_dict(old.state_dict())
    decoder = make_decoder(model)
    assert isinstance(decoder, CachedDecoder)
    assert not caplog.records
    with torch.no_grad():
        logits = PlainDecoder(model, forward_resident).start([[1, 2, 3]], 5)
    torch.testing.assert_close(decoder.start([[1, 2, 3]], 5), logits)
    text = generate(model, [1, 2, 3], num_tokens=30, seed=0, sampling=GREEDY)
    assert text == forward_pass_a_token(model, [1, 2, 3], 30)


@pytest.mark.parametrize("build", [*OTHERS.values(), replaced_part], ids=[*OTHERS, "a replaced part"])
def test_models_that_keep_nothing_write_by_recomputation(build):
    """The same text as one forward pass a token, alone and in a batch of unequal prompts."""
    from hornbook.generate import draws_of, generate_batch

    model = build()
    assert isinstance(make_decoder(model), PlainDecoder)
    prompts = [[1, 2, 3], [4], [9] * 30]
    alone = [generate(model, prompt, num_tokens=40, seed=0, sampling=GREEDY) for prompt in prompts]
    assert alone == [forward_pass_a_token(model, prompt, 40) for prompt in prompts]
    draws = [draws_of(0, prompt) for prompt in prompts]
    assert alone == generate_batch(
        make_decoder(model), prompts, num_tokens=40, vocab_size=70, draws=draws, sampling=GREEDY
    )


@torch.no_grad()
def forward_pass_a_token(model, prompt, num_tokens):
    window, ids = prompt[-24:], []
    for _ in range(num_tokens):
        tokens = torch.tensor([window])
        batch = {"tokens": tokens, "positions": torch.arange(len(window))[None], "keys": torch.zeros_like(tokens)}
        ids.append(int(model.head.logits(hidden_states(model, batch))[0, -1].argmax()))
        window = [*window, ids[-1]] if len(window) < 24 else [*window, ids[-1]][-12:]
    return ids


def test_a_head_of_ones_own_is_asked():
    model = model_of(plain_blocks(), head=QuietHead)
    decoder = make_decoder(model)
    assert isinstance(decoder, CachedDecoder)
    torch.testing.assert_close(
        decoder.start([[1, 2, 3]], 5), PlainDecoder(model, forward_resident).start([[1, 2, 3]], 5)
    )


def test_a_block_of_ones_own_may_keep_what_it_wants():
    """With an incremental form, ``ShiftBlock`` keeps the last hidden state in a cache of one head, as a key."""

    class Incremental:
        cache_shape = (1, 16)

        def __call__(self, x_BTD, cache_B2HSK, mask, positions_BT):
            num_new, num_columns = x_BTD.shape[1], cache_B2HSK.shape[3]
            cache_B2HSK[:, 0, 0, num_columns - num_new :] = x_BTD
            before = nn.functional.pad(cache_B2HSK[:, 0, 0], (0, 0, 1, 0))[:, :-1]
            return x_BTD + 0.5 * before[:, -num_new:]

    class Keeping(ShiftBlock):
        def incremental(self, dtype):
            return Incremental()

    model = model_of([Keeping(), *plain_blocks()])
    assert isinstance(make_decoder(model), CachedDecoder)
    assert generate(model, [1, 2, 3], num_tokens=20, seed=0, sampling=GREEDY) == forward_pass_a_token(
        model, [1, 2, 3], 20
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_cast_once_and_shared_where_they_can_be(dtype):
    model = tiny_model(compute_dtype=dtype).eval()
    quick = incremental(model)
    assert isinstance(quick, IncrementalModel)
    block = quick._blocks[0]
    embedding, tables = quick._embedding, (model.embedding.tokens, model.embedding.positions)
    shared = embedding.tokens.data_ptr(), embedding.positions.data_ptr()
    assert shared == tuple(table.data_ptr() for table in tables)
    assert quick.cache_dtype == torch.float32, "on a CPU"
    assert quick.cache_shapes == [(2, 8), (2, 8)]
    for part in (block._attention.qkv, block._attention.out):
        assert part.weight.dtype == part.bias.dtype == dtype
        assert not part.weight.requires_grad
    norm = block._attention_norm.keywords
    assert norm["weight_D"].dtype == norm["bias_D"].dtype == torch.float32, "on a CPU"
    torch.testing.assert_close(
        block._attention.qkv.weight.float(),
        model.blocks[0].attention.qkv.weight.flatten(0, 1).to(dtype).float(),
    )
    own = model.blocks[0].attention.qkv.weight.data_ptr()
    assert (block._attention.qkv.weight.data_ptr() == own) == (dtype == torch.float32)
    if quick._token is not None:
        assert quick._token._blocks[0]._tensors[2].data_ptr() == block._attention.qkv.weight.data_ptr()
        caches = [torch.zeros(1, 2, 2, length, 8) for length in (3, 4) for _ in quick.cache_shapes]
        quick.logits(torch.ones(1, 3).long(), torch.arange(3)[None], caches[:2])
        quick.logits(torch.ones(1, 1).long(), torch.full((1, 1), 3), caches[2:])
        assert "_weight_for_one_token" not in vars(block._attention.qkv)
