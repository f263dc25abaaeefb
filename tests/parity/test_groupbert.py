"""GroupBERT against its formulas, written down once more in ordinary loops: one sequence, head and group at a time."""

import pytest
import torch
from cases import mostly_slow
from tiny import hidden_states
from tiny_encoders import LAYOUTS, Sample, gradients_of, lay_out, make_samples, tiny_encoder
from torch import Tensor, nn
from torch.nn import functional

from hornbook.model import EncoderModel

SIZES = {
    "plain": {},
    "other groups": {"convolution_group_size": 8, "feed_forward_groups": 2, "convolution_kernel": 3},
    "a kernel longer than most sequences": {"convolution_kernel": 11},
    "no biases": {"qkv_bias": False, "projection_bias": False, "layer_norm_epsilon": 1e-3},
}


class Plain(nn.Module):
    """The formulas, on the very parameters of ``model``."""

    def __init__(self, model: EncoderModel, sizes: dict) -> None:
        super().__init__()
        self.model, self.epsilon = model, sizes.get("layer_norm_epsilon", 1e-12)

    def norm(self, x: Tensor, parameters: nn.Module) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).square().mean(-1, keepdim=True)
        return (x - mean) / (variance + self.epsilon).sqrt() * parameters.weight + parameters.bias

    @staticmethod
    def linear(x: Tensor, parameters: nn.Module) -> Tensor:
        y = x @ parameters.weight.t()
        return y if parameters.bias is None else y + parameters.bias

    def convolution(self, x: Tensor, part: nn.Module) -> Tensor:
        both = self.linear(x, part.up)
        size = x.shape[1]
        gated = torch.sigmoid(both[:, :size]) * both[:, size:]
        _, group_size, kernel = part.filter_weight.shape
        columns = []
        for channel in range(size):
            first = channel // group_size * group_size
            outputs = []
            for place in range(len(x)):
                total = part.filter_bias[channel]
                for step in range(kernel):
                    seen = place + step - kernel // 2
                    if 0 <= seen < len(x):
                        weights = part.filter_weight[channel, :, step]
                        total = total + weights @ gated[seen, first : first + group_size]
                outputs.append(total)
            columns.append(torch.stack(outputs))
        return self.linear(functional.silu(self.norm(torch.stack(columns, 1), part.norm)), part.down)

    def feed_forward(self, x: Tensor, part: nn.Module) -> Tensor:
        inner = functional.gelu(self.linear(x, part.up))
        num_groups, _, width = part.grouped.weight.shape
        groups = [inner[:, g * width : (g + 1) * width] @ part.grouped.weight[g].t() for g in range(num_groups)]
        return self.linear(torch.cat(groups, 1) + part.grouped.bias, part.down)

    def attention(self, x: Tensor, part: nn.Module) -> Tensor:
        size = part.head_size
        biases = [0.0] * 3 if part.qkv.bias is None else part.qkv.bias
        q, k, v = (x @ weight.t() + bias for weight, bias in zip(part.qkv.weight, biases, strict=True))
        heads = []
        for head in range(part.num_heads):
            here = slice(head * size, (head + 1) * size)
            heads.append(torch.softmax(q[:, here] @ k[:, here].t() / size**0.5, -1) @ v[:, here])
        return self.linear(torch.cat(heads, 1), part.out)

    def sequence(self, sample: Sample) -> Tensor:
        tables = self.model.embedding
        x = tables.tokens[sample.tokens] + tables.positions[: len(sample.tokens)] + tables.segments[sample.segments]
        x = self.norm(x, tables.norm)
        for block in self.model.blocks:
            x = x + self.convolution(self.norm(x, block.norms[0]), block.convolution)
            x = x + self.feed_forward(self.norm(x, block.norms[1]), block.first_feed_forward)
            x = x + self.attention(self.norm(x, block.norms[2]), block.attention)
            x = x + self.feed_forward(self.norm(x, block.norms[3]), block.second_feed_forward)
        return self.norm(x, self.model.head.norm)

    def logits(self, x: Tensor) -> Tensor:
        head = self.model.head
        hidden = self.norm(functional.gelu(self.linear(x, head.transform.dense)), head.transform.norm)
        return hidden @ self.model.embedding.tokens[:70].t() + head.bias

    def loss(self, samples: list[Sample]) -> Tensor:
        head, masked, pairs = self.model.head, [], []
        for sample in samples:
            x = self.sequence(sample)
            scores = torch.log_softmax(self.logits(x[sample.places]), -1)
            masked += [-scores[row, target] for row, target in enumerate(sample.targets)]
            pooled = torch.tanh(self.linear(x[0], head.pooler))
            pairs.append(-torch.log_softmax(self.linear(pooled, head.classifier), -1)[sample.label])
        return torch.stack(masked).mean() + torch.stack(pairs).mean()


@pytest.mark.parametrize("layout", mostly_slow(reversed(LAYOUTS)))
@pytest.mark.parametrize("sizes", mostly_slow(SIZES.values(), 2), ids=SIZES)
def test_loss_and_gradients_equal_the_formulas(sizes, layout):
    model = tiny_encoder("groupbert", num_layers=2, **sizes)
    samples = make_samples([7, 2, 12, 1])
    loss, gradients = gradients_of(model, lay_out(samples, layout, num_columns=16))
    model.zero_grad(set_to_none=True)
    plain = Plain(model, sizes).loss(samples)
    plain.backward()
    torch.testing.assert_close(loss, plain.detach(), atol=1e-5, rtol=1e-5)
    for name, parameter in model.own_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-5, rtol=1e-4, msg=name)


def test_logits_equal_the_formulas():
    model = tiny_encoder("groupbert")
    (sample,) = make_samples([15])
    with torch.no_grad():
        ours = model.head.logits(hidden_states(model, lay_out([sample], "unpadded"))[0])
        plain = Plain(model, {})
        torch.testing.assert_close(ours, plain.logits(plain.sequence(sample)), atol=1e-5, rtol=1e-5)


def test_groupbert_base_has_161_million_parameters():
    from tiny_encoders import tiny_encoder_config

    from hornbook.model import build_model

    sizes = {"num_layers": 12, "hidden_size": 768, "num_heads": 12, "vocab_size": 30522, "max_positions": 512}
    config = tiny_encoder_config("groupbert", **sizes)
    with torch.device("meta"):
        model = build_model(config, torch.float32)
    assert model.num_parameters == config.num_parameters() == 160_842_044
