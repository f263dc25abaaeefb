"""Which models keep keys and values, that they compute what the training path does, and that others still write."""

import pytest
import torch
from tiny import hidden_states, randomize, tiny_config, tiny_model
from torch import nn

from hornbook.generate import Sampling, generate, make_decoder
from hornbook.generate.decoder import CachedDecoder, PlainDecoder
from hornbook.model import LanguageModel, initialize
from hornbook.model.block import PreNormBlock
from hornbook.model.embedding import TokenAndPositionEmbedding
from hornbook.model.forward import forward_resident
from hornbook.model.head import TiedHead
from hornbook.model.incremental import attend, incremental, incremental_block

GREEDY = Sampling(temperature=0.0)


class ShiftBlock(nn.Module):
    """A causal block without attention: it adds half of the token before."""

    def forward(self, x_BTD, context):
        return x_BTD + 0.5 * nn.functional.pad(x_BTD, (0, 0, 1, 0))[:, :-1]


class LoudBlock(PreNormBlock):
    """Would be mistaken for its parent if the parent's cached path served subclasses."""

    def forward(self, x_BTD, context):
        return super().forward(x_BTD, context) * 1.5


class BackwardsModel(LanguageModel):
    """Has a way of its own through its blocks."""

    def forward(self, use, batch):
        x_BTD = self.embedding(batch["tokens"], batch["positions"], batch["keys"])
        for block in reversed(self.blocks):
            x_BTD = block(x_BTD, {"keys": batch["keys"]})
        return self.head(use, x_BTD, batch)


class QuietHead(TiedHead):
    """Halves its logits."""

    def logits(self, x_ND):
        return super().logits(x_ND) / 2


def model_of(blocks, *, kind=LanguageModel, head=TiedHead, **changes) -> LanguageModel:
    config = tiny_config(**changes)
    embedding = TokenAndPositionEmbedding(70, 24, 16, dropout=0.0, std=0.3, compute_dtype=torch.float32)
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
    model = model_of(plain_blocks())
    model.blocks[1].attention.out = nn.Linear(16, 16)
    return model


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
    """Registered, ``ShiftBlock`` keeps the last hidden state in a cache of one head, as a key."""

    class Registered(ShiftBlock):
        pass

    class Incremental:
        cache_shape = (1, 16)

        def __call__(self, x_BTD, cache_B2HSK, mask):
            num_new, num_columns = x_BTD.shape[1], cache_B2HSK.shape[3]
            cache_B2HSK[:, 0, 0, num_columns - num_new :] = x_BTD
            before = nn.functional.pad(cache_B2HSK[:, 0, 0], (0, 0, 1, 0))[:, :-1]
            return x_BTD + 0.5 * before[:, -num_new:]

    incremental_block.register(Registered, lambda block, dtype: Incremental())
    model = model_of([Registered(), *plain_blocks()])
    assert isinstance(make_decoder(model), CachedDecoder)
    assert generate(model, [1, 2, 3], num_tokens=20, seed=0, sampling=GREEDY) == forward_pass_a_token(
        model, [1, 2, 3], 20
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_cast_once_and_the_embedding_is_shared(dtype):
    model = tiny_model(compute_dtype=dtype).eval()
    quick = incremental(model)
    block = quick._blocks[0]
    assert quick._embedding is model.embedding
    assert quick.cache_dtype == torch.float32, "on a CPU"
    assert quick.cache_shapes == [(2, 8), (2, 8)]
    for part in (block._qkv, block._out, block._up, block._down):
        assert part.weight.dtype == part.bias.dtype == dtype
        assert not part.weight.requires_grad
    assert block._attention_norm.weight.dtype == block._attention_norm.bias.dtype == torch.float32, "on a CPU"
    torch.testing.assert_close(
        block._qkv.weight.float(), model.blocks[0].attention.qkv_weight.flatten(0, 1).to(dtype).float()
    )


@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16])
def test_attention_over_a_cache_is_that_over_all_tokens(cache_dtype):
    """Five tokens, then one at a time, against all at once; keys and values stand in the cache."""
    draws = torch.Generator().manual_seed(0)
    qkv = torch.randn(2, 9, 3, 4, 8, generator=draws)
    whole = attend(qkv, torch.zeros(2, 2, 4, 9, 8), None)
    cache = torch.zeros(2, 2, 4, 12, 8, dtype=cache_dtype)
    parts = [attend(qkv[:, :5], cache[:, :, :, :5], None)]
    parts += [attend(qkv[:, n : n + 1], cache[:, :, :, : n + 1], None) for n in range(5, 9)]
    tolerance = 1e-6 if cache_dtype == torch.float32 else 2e-2
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(cache[:, :, :, :9], qkv[:, :, 1:].permute(0, 2, 3, 1, 4).to(cache_dtype))
    assert not cache[:, :, :, 9:].any(), "nothing is written behind the last token"


def test_a_mask_hides_what_is_left_of_a_row():
    """A row padded by two columns of rubbish attends as the row without them."""
    draws = torch.Generator().manual_seed(0)
    qkv = torch.randn(1, 6, 3, 4, 8, generator=draws)
    cache = torch.full((1, 2, 4, 8, 8), 1e3)
    plain = torch.zeros(1, 2, 4, 6, 8)
    cache[:, :, :, 2:7] = qkv[:, :5, 1:].permute(0, 2, 3, 1, 4)
    attend(qkv[:, :5], plain[:, :, :, :5], None)
    mask = torch.tensor([-torch.inf] * 2 + [0.0] * 6).view(1, 1, 1, 8)
    torch.testing.assert_close(attend(qkv[:, 5:], cache, mask), attend(qkv[:, 5:], plain, None))
