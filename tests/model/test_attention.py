"""Self-attention: its paths agree, and a token sees what it may and nothing else."""

import pytest
import torch
from tiny import hidden_states, random_batch, randomize, tiny_model
from torch.nn import functional

from hornbook.model.attention import CausalSelfAttention
from hornbook.model.initialize import Draw, generator
from hornbook.model.layers import Dropout, Linear
from hornbook.ops import attention
from hornbook.ops.attention import causal_mask, document_mask
from hornbook.ops.dropout import keep_mask


def make_attention(probability: float = 0.0, num_heads: int = 2, head_size: int = 6) -> CausalSelfAttention:
    """An attention whose heads are not hidden_size / num_heads wide, with biases that are not zero."""
    layer = CausalSelfAttention(8, num_heads, head_size, dropout=Dropout(probability, site=1), std=0.5, out_std=0.5)
    layer.qkv.draw(Draw(0, "attention.qkv"))
    layer.out.draw(Draw(0, "attention.out"))
    with torch.no_grad():
        layer.qkv.bias.normal_(generator=torch.Generator().manual_seed(1))
    return layer


def inputs(num_samples: int = 3, num_tokens: int = 7) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    draws = torch.Generator().manual_seed(2)
    keys = torch.randint(1 << 32, (num_samples, num_tokens), generator=draws)
    return torch.randn(num_samples, num_tokens, 8, generator=draws), {"keys": keys}


def by_hand(layer: CausalSelfAttention, x: torch.Tensor, keys: torch.Tensor | None = None) -> torch.Tensor:
    """Attention one sample, head and query at a time, in float64; dropped weights if there are keys."""
    num_heads, size = layer.num_heads, layer.head_size
    weight, bias = (
        layer.qkv.weight.double().view(3, num_heads, size, -1),
        layer.qkv.bias.double().view(3, num_heads, size),
    )
    mixed = torch.zeros(*x.shape[:2], num_heads, size, dtype=torch.float64)
    for sample, rows in enumerate(x.double()):
        for head in range(num_heads):
            q, k, v = (rows @ weight[part, head].t() + bias[part, head] for part in range(3))
            for query in range(len(rows)):
                weights = torch.softmax(k[: query + 1] @ q[query] / size**0.5, 0)
                if keys is not None:
                    key = (keys[sample, query] + head * 0x85EBCA6B) % (1 << 32)
                    p = layer.dropout.probability
                    weights = weights * keep_mask(key, layer.dropout.site, query + 1, p) / (1 - p)
                mixed[sample, query, head] = weights @ v[: query + 1]
    return mixed.flatten(2) @ layer.out.weight.double().t() + layer.out.bias.double()


def paths(monkeypatch: pytest.MonkeyPatch, layer: CausalSelfAttention, x: torch.Tensor, context: dict) -> dict:
    """The output by each way through the layer."""
    outputs = {}
    for name, fitting in (("blocks of queries", True), ("fused", False)):
        monkeypatch.setattr(attention, "is_blocked", lambda *_, fitting=fitting, **__: fitting)
        outputs[name] = layer(x, context)
    outputs["fused with a mask"] = layer(x, {**context, "mask": causal_mask(x.shape[1], x.device)})
    layer.dropout.probability = 1e-12  # takes the explicit path and drops nothing
    outputs["explicit"] = layer(x, context)
    layer.dropout.probability = 0.0
    return outputs


def test_all_paths_equal_attention_by_hand(monkeypatch):
    layer = make_attention()
    x, context = inputs()
    expected = by_hand(layer, x)
    for name, output in paths(monkeypatch, layer, x, context).items():
        torch.testing.assert_close(output.double(), expected, atol=2e-6, rtol=1e-5, msg=name)


def test_dropped_weights_equal_attention_by_hand():
    layer = make_attention(0.4)
    x, context = inputs()
    torch.testing.assert_close(layer(x, context).double(), by_hand(layer, x, context["keys"]), atol=2e-6, rtol=1e-5)
    layer.eval()
    torch.testing.assert_close(layer(x, context).double(), by_hand(layer, x), atol=2e-6, rtol=1e-5)


def test_heads_drop_different_weights():
    layer = make_attention(0.5, num_heads=2)
    layer.qkv.weight.data[0] = 0.0  # all queries are alike: weights are uniform in both heads
    layer.qkv.bias.data.zero_()
    layer.qkv.weight.data[2, 6:] = layer.qkv.weight.data[2, :6]  # and so are the values of both heads
    layer.out.weight.data.zero_()
    layer.out.weight.data[0, 0], layer.out.weight.data[1, 6] = 1.0, 1.0
    x, context = inputs(num_tokens=7)
    y = layer(x, context)
    assert not torch.allclose(y[..., 0] - layer.out.bias[0], y[..., 1] - layer.out.bias[1])


@pytest.mark.parametrize("changes", [{}, {"attention_dropout": 0.3}])
def test_later_tokens_do_not_matter(changes):
    model = tiny_model(**changes)
    randomize(model)
    batch = random_batch(2, 12)
    before = hidden_states(model, batch)
    batch["tokens"][:, 8:] = (batch["tokens"][:, 8:] + 1) % 70
    after = hidden_states(model, batch)
    assert torch.equal(after[:, :8], before[:, :8])
    assert not torch.allclose(after[:, 8:], before[:, 8:])


@pytest.mark.parametrize("changes", [{}, {"attention_dropout": 0.3, "residual_dropout": 0.1}])
def test_documents_that_share_a_window_are_as_if_alone(changes):
    """Given the same positions and keys. Dropped columns are places in the window, so the first document alone can show
    that dropout agrees; without dropout all of them must.
    """
    model = tiny_model(**changes)
    randomize(model)
    window = random_batch(1, 12)
    window["documents"] = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 2, 3, 3, 3]])
    together = hidden_states(model, window)
    spans = [(0, 3)] if changes else [(0, 3), (3, 8), (8, 9), (9, 12)]
    for start, stop in spans:
        alone = {name: tensor[:, start:stop] for name, tensor in window.items() if name != "documents"}
        torch.testing.assert_close(hidden_states(model, alone), together[:, start:stop])


def test_a_mask_that_is_given_is_not_made_again(monkeypatch):
    """Two layers that drop weights: the mask of the documents is made once, with its causal half."""
    made = []
    monkeypatch.setattr(attention, "causal_mask", lambda *of: made.append(of) or causal_mask(*of))
    model = tiny_model(attention_dropout=0.3)
    hidden_states(model, random_batch(1, 12) | {"documents": torch.zeros(1, 12, dtype=torch.int64)})
    assert len(made) == 1


def test_a_document_mask_changes_what_follows_the_first_document():
    model = tiny_model()
    window = random_batch(1, 12)
    open_attention = hidden_states(model, window)
    masked = hidden_states(model, {**window, "documents": torch.tensor([[0] * 5 + [1] * 7])})
    torch.testing.assert_close(masked[:, :5], open_attention[:, :5])
    assert not torch.allclose(masked[:, 6:], open_attention[:, 6:])


def test_document_mask_is_causal_and_block_diagonal():
    mask = document_mask(torch.tensor([[0, 0, 1], [0, 1, 1]]))
    assert mask.shape == (2, 1, 3, 3)
    assert mask[0, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    assert mask[1, 0].int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]


def test_query_key_and_value_can_be_distinguished():
    """Zero queries make the weights uniform, so the output is the running mean of the values."""
    layer = make_attention(num_heads=1, head_size=8)
    layer.qkv.weight.data[0] = 0.0
    layer.qkv.bias.data[0] = 0.0
    layer.out.weight.data, layer.out.bias.data = torch.eye(8), torch.zeros(8)
    x, context = inputs()
    values = functional.linear(x, layer.qkv.weight[2], layer.qkv.bias[2])
    means = values.cumsum(1) / torch.arange(1, 8).view(1, -1, 1)
    torch.testing.assert_close(layer(x, context), means)


def test_heads_cut_over_two_ranks_drop_the_same_weights():
    """The query, key and value of each half of the heads; the sum of both outputs is that of all heads."""
    whole = make_attention(0.4, num_heads=4)
    halves = [CausalSelfAttention(8, 2, 6, dropout=whole.dropout, std=0.5, out_std=0.5, first_head=f) for f in (0, 2)]
    x, context = inputs()
    with torch.no_grad():
        for half, columns in zip(halves, (slice(0, 12), slice(12, 24)), strict=True):
            half.qkv.weight.copy_(whole.qkv.weight[:, columns])
            half.qkv.bias.copy_(whole.qkv.bias[:, columns])
            half.out.weight.copy_(whole.out.weight[:, columns])
            half.out.bias.copy_(whole.out.bias / 2)
    torch.testing.assert_close(sum(half(x, context) for half in halves), whole(x, context))


def test_query_key_and_value_start_from_the_numbers_of_the_first_checkpoints():
    """The weight is drawn under the name that it had as a parameter of the attention."""
    model = tiny_model(seed=7)
    expected = torch.empty(3, 16, 16).normal_(0.0, 0.02, generator=generator(7, "blocks.1.attention.qkv_weight"))
    assert torch.equal(model.blocks[1].attention.qkv.weight, expected)


def test_a_linear_is_an_nn_linear_that_draws_its_own_weights():
    layer = Linear(3, 5, std=0.1)
    assert isinstance(layer, torch.nn.Linear)
    before = layer.weight.detach().fill_(7.0).clone()
    layer.reset_parameters()
    assert torch.equal(layer.weight, before)
