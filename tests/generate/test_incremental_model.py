"""Which models keep keys and values, that they compute what the training path does, and that others still write."""

from contextlib import nullcontext

import pytest
import torch
from tiny import hidden_states, randomize, tiny_config, tiny_model
from torch import nn

from hornbook.config import MemoryConfig
from hornbook.engine.activations import recompute_layers
from hornbook.generate import Sampling, generate, make_decoder
from hornbook.generate.decoder import CachedDecoder, PlainDecoder, _warn_once
from hornbook.generate.incremental_model import IncrementalModel, incremental_model
from hornbook.model import LanguageModel, initialize
from hornbook.model.attention import CausalSelfAttention
from hornbook.model.block import PreNormBlock
from hornbook.model.head import CausalHead
from hornbook.model.language_model import forward_resident
from hornbook.model.layers import Embedding, Linear
from hornbook.ops.layers import linear
from hornbook.ops.native.kernels import Kernels, using

GREEDY = Sampling(temperature=0.0)


class ShiftBlock(nn.Module):
    """A causal block without attention: it adds half of the token before."""

    def forward(self, x_BTD, context):
        return x_BTD + 0.5 * nn.functional.pad(x_BTD, (0, 0, 1, 0))[:, :-1]


class LoudBlock(PreNormBlock):
    """Does not promise that new tokens suffice, as its parent does."""

    def forward(self, x_BTD, context):
        return super().forward(x_BTD, context) * 1.5


class LoudLinear(Linear):
    """Doubles its output: its weights are not cast once."""

    def forward(self, x):
        return 2 * linear(x, self.weight, self.bias)


class SameLinear(Linear):
    """Changes nothing."""


class ForeignLinear(nn.Linear):
    """PyTorch's own, which knows nothing of generation."""

    draw, is_uniform = Linear.draw, False

    def __init__(self, num_in, num_out, *, std, bias=True):
        super().__init__(num_in, num_out, bias)
        self.std = std


class SharpAttention(CausalSelfAttention):
    """Overrides ``split`` as docs/extend.md allows."""

    def split(self, packed_BTE):
        q_BHTK, k_BHTK, v_BHTK = super().split(packed_BTE)
        return 2 * q_BHTK, k_BHTK, v_BHTK.flip(-1)


class LoudAttention(CausalSelfAttention):
    """Doubles what it mixes."""

    def mix(self, packed_BTE, context):
        return 2 * super().mix(packed_BTE, context)


class OneKeyAttention(CausalSelfAttention):
    """One key and value for all heads, so its projection has another size."""

    def __init__(self, hidden_size, num_heads, head_size, *, std, **options):
        super().__init__(hidden_size, num_heads, head_size, std=std, **options)
        self.qkv = Linear(hidden_size, (num_heads + 2) * head_size, std=std)

    def split(self, packed_BTE):
        heads_BHTK = packed_BTE.unflatten(-1, (-1, self.head_size)).transpose(1, 2)
        q_BHTK, k_B1TK, v_B1TK = heads_BHTK.split((self.num_heads, 1, 1), 1)
        return q_BHTK, k_B1TK, v_B1TK


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


@pytest.mark.parametrize("kernels", ["as chosen", "torch"])
@pytest.mark.parametrize("kind", [SharpAttention, LoudAttention, OneKeyAttention])
def test_an_attention_of_ones_own_writes_what_it_was_trained_to(kind, kernels):
    model = model_of([PreNormBlock(tiny_config(), index, attention=kind) for index in range(2)])
    with nullcontext() if kernels == "as chosen" else using(Kernels(why="asked for")):
        assert_same_logits(model)


def test_both_norms_of_a_block_have_their_own_epsilon():
    model = model_of(plain_blocks())
    model.blocks[0].feed_forward_norm.epsilon = 2.0
    model.blocks[1].attention_norm.epsilon = 0.5
    assert_same_logits(model)


def assert_same_logits(model: LanguageModel) -> None:
    """Generation's logits are those of the forward pass of training, for a prompt and for each token after it."""
    decoder, plain = make_decoder(model), PlainDecoder(model, forward_resident)
    torch.testing.assert_close(decoder.start([[1, 2, 3], [4]], 5), plain.start([[1, 2, 3], [4]], 5))
    for token in (5, 6, 7):
        torch.testing.assert_close(decoder.advance([token, 8]), plain.advance([token, 8]))


def test_a_head_of_ones_own_is_asked():
    model = model_of(plain_blocks(), head=QuietHead)
    decoder = make_decoder(model)
    assert isinstance(decoder, CachedDecoder)
    torch.testing.assert_close(
        decoder.start([[1, 2, 3]], 5), PlainDecoder(model, forward_resident).start([[1, 2, 3]], 5)
    )


def test_a_block_of_ones_own_may_keep_what_it_wants():
    """``ShiftBlock`` with the last hidden states in the cache, as keys of one head."""

    class Keeping(nn.Module):
        is_incremental = True

        def forward(self, x_BTD, context):
            before_BTD = nn.functional.pad(x_BTD, (0, 0, 1, 0))[:, :-1]
            if "cache" in context:
                keys_BSD, num_new = context["cache"].of(self, 1, 16)[:, 0, 0], x_BTD.shape[1]
                keys_BSD[:, -num_new:] = x_BTD
                before_BTD = nn.functional.pad(keys_BSD, (0, 0, 1, 0))[:, -num_new - 1 : -1]
            return x_BTD + 0.5 * before_BTD

    model = model_of([Keeping(), *plain_blocks()])
    assert isinstance(make_decoder(model), CachedDecoder)
    assert generate(model, [1, 2, 3], num_tokens=20, seed=0, sampling=GREEDY) == forward_pass_a_token(
        model, [1, 2, 3], 20
    )


def test_recomputed_activations_do_not_cost_the_cache():
    model = model_of(plain_blocks())
    recompute_layers(model, MemoryConfig(recompute="attention"))
    assert isinstance(make_decoder(model), CachedDecoder)
    assert_same_logits(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_cast_once_and_shared_where_they_can_be(dtype):
    model = tiny_model(compute_dtype=dtype).eval()
    quick = incremental_model(model)
    assert isinstance(quick, IncrementalModel)
    decoder = CachedDecoder(quick)
    decoder.start([[1, 2, 3]], 2)
    assert {tensor.dtype for tensor in decoder.cache.tensors.values()} == {torch.float32}, "on a CPU"
    twin, block, own = quick._model, quick._model.blocks[0], model.blocks[0]
    assert block is not own and own.attention.qkv.weight.dtype == torch.float32, "the model is as before"
    tables = (twin.embedding.tokens, twin.embedding.positions), (model.embedding.tokens, model.embedding.positions)
    assert [table.data_ptr() for table in tables[0]] == [table.data_ptr() for table in tables[1]]
    for part in (block.attention.qkv, block.attention.out):
        assert part.weight.dtype == part.bias.dtype == dtype
        assert not part.weight.requires_grad
    norm = block.attention_norm
    assert norm.weight.dtype == norm.bias.dtype == torch.float32, "on a CPU"
    torch.testing.assert_close(
        block.attention.qkv.weight.float(), own.attention.qkv.weight.flatten(0, 1).to(dtype).float()
    )
    is_shared = block.attention.qkv.weight.data_ptr() == own.attention.qkv.weight.data_ptr()
    assert is_shared == (dtype == torch.float32)
    if quick._token is not None:
        _, _, _, query, *_ = quick._token._blocks[0]._tensors  # after gain, bias and epsilon of the norm
        assert query.data_ptr() == block.attention.qkv.weight.data_ptr()
        decoder.advance([3])
        assert "_weight_for_one_token" not in vars(block.attention.qkv)
