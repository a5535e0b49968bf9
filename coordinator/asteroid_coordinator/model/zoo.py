"""Models by name, built from transformers' configurations with random weights, and the user's own by module:function.

Nothing is downloaded: pretrained weights come from a local directory that the job names.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from asteroid_core.data.source import Field, Source
from asteroid_core.errors import InputError
from asteroid_core.program import LossSpec
from asteroid_core.spec import ModelSpec, Scalar


@dataclass(frozen=True)
class Chosen:
    """A module, ready to be exported.

    Attributes:
        name: for people.
        module: with the user's own parameter names; ``forward`` returns one tensor.
        inputs: type and shape of each input, without the batch.
        vocabulary: of integer inputs.
        loss: what the last stage minimises.
    """

    name: str
    module: nn.Module
    inputs: tuple[Field, ...]
    vocabulary: int
    loss: LossSpec


@dataclass
class Options:
    """Options of a model; those that nobody asked for are an error."""

    given: Mapping[str, Scalar]
    model: str
    used: set[str] = field(default_factory=set)

    def number(self, name: str, default: float) -> float:
        """Return a number option."""
        self.used.add(name)
        value = self.given.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InputError(f"model.options.{name} of {self.model} is {value!r}.", "Give a number.")
        return float(value)

    def whole(self, name: str, default: int) -> int:
        """Return an integer option."""
        value = self.number(name, default)
        if value != int(value) or value < 0:
            raise InputError(f"model.options.{name} of {self.model} is {value!r}.", "Give a whole number.")
        return int(value)

    def finish(self) -> None:
        """Refuse options that the model does not know.

        Raises:
            InputError: names them, and the known ones.
        """
        if left := sorted(set(self.given) - self.used):
            raise InputError(
                f"The model {self.model} has no option {', '.join(left)}.",
                f"It knows: {', '.join(sorted(self.used)) or 'none'}.",
            )


class Mlp(nn.Module):
    """Two hidden layers on flattened inputs."""

    def __init__(self, inputs: int, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(inputs, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        out: torch.Tensor = self.layers(x)
        return out


class Cnn(nn.Module):
    """Three convolutions with batch norm, for small pictures."""

    def __init__(self, channels: int, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 4 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(dropout), nn.Linear(16 * width, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        out: torch.Tensor = self.head(self.features(x))
        return out


class Attention(nn.Module):
    """Eager self-attention, so that dropout is a node of its own."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return mixed tokens, shape as ``x`` (rows, tokens, width)."""
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=2))
        weights = self.drop((q @ k.transpose(2, 3) / q.shape[3] ** 0.5).softmax(3))
        out: torch.Tensor = self.out((weights @ v).transpose(1, 2).flatten(2))
        return out


class Transformer(nn.Module):
    """Tokens to logits of the next token; the output layer may be tied to the embedding."""

    def __init__(self, vocabulary: int, tokens: int, width: int, blocks: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(tokens, width) * 0.02)
        self.attention = nn.ModuleList(Attention(width, heads, dropout) for _ in range(blocks))
        self.norm1 = nn.ModuleList(nn.LayerNorm(width) for _ in range(blocks))
        self.norm2 = nn.ModuleList(nn.LayerNorm(width) for _ in range(blocks))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(dropout))
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return logits (rows, tokens, vocabulary)."""
        h = self.embed(ids) + self.position
        for attention, norm1, norm2, mlp in zip(self.attention, self.norm1, self.norm2, self.mlp, strict=True):
            h = h + attention(norm1(h))
            h = h + mlp(norm2(h))
        out: torch.Tensor = self.head(h)
        return out


class Logits(nn.Module):
    """A transformers model that returns its logits only; parameter names stay those of the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        out: torch.Tensor = self.model(x).logits
        return out


Builder = Callable[[Options, Source, str | None], nn.Module]


def _classes(options: Options, source: Source) -> int:
    return options.whole("classes", source.classes or 10)


def _mlp(options: Options, source: Source, weights: str | None) -> nn.Module:
    _no_weights("mlp", weights)
    size = 1
    for side in source.inputs[0].shape:
        size *= side
    return Mlp(size, options.whole("hidden", 64), _classes(options, source), options.number("dropout", 0.0))


def _cnn(options: Options, source: Source, weights: str | None) -> nn.Module:
    _no_weights("cnn", weights)
    channels = _picture("cnn", source)
    return Cnn(channels, options.whole("width", 16), _classes(options, source), options.number("dropout", 0.0))


def _transformer(options: Options, source: Source, weights: str | None) -> nn.Module:
    _no_weights("transformer", weights)
    tokens = _tokens("transformer", source)
    width, heads = options.whole("width", 32), options.whole("heads", 2)
    vocabulary = options.whole("vocabulary", source.vocabulary or 256)
    model = Transformer(vocabulary, tokens, width, options.whole("blocks", 2), heads, options.number("dropout", 0.0))
    if options.whole("tied", 0):
        model.head.weight = model.embed.weight
    return model


def _mobilenet(options: Options, source: Source, weights: str | None) -> nn.Module:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    config = MobileNetV2Config(
        num_labels=_classes(options, source),
        num_channels=_picture("mobilenet-v2", source),
        depth_multiplier=options.number("depth_multiplier", 1.0),
        classifier_dropout_prob=options.number("dropout", 0.2),
        tf_padding=False,
    )
    return Logits(_from(MobileNetV2ForImageClassification, config, weights))


def _resnet(options: Options, source: Source, weights: str | None) -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(num_labels=_classes(options, source), num_channels=_picture("resnet-50", source))
    return Logits(_from(ResNetForImageClassification, config, weights))


def _efficientnet(options: Options, source: Source, weights: str | None) -> nn.Module:
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    config = EfficientNetConfig(
        num_labels=_classes(options, source),
        num_channels=_picture("efficientnet-b1", source),
        width_coefficient=1.0,
        depth_coefficient=1.1,
        hidden_dim=1280,
        image_size=240,
        dropout_rate=options.number("dropout", 0.2),
        drop_connect_rate=options.number("drop_connect", 0.2),
    )
    return Logits(_from(EfficientNetForImageClassification, config, weights))


def _bert_config(options: Options, source: Source, **extra: Any) -> Any:
    from transformers import BertConfig

    dropout = options.number("dropout", 0.1)
    return BertConfig(
        vocab_size=options.whole("vocabulary", source.vocabulary or 30522),
        hidden_size=options.whole("width", 512),
        num_hidden_layers=options.whole("blocks", 4),
        num_attention_heads=options.whole("heads", 8),
        intermediate_size=4 * options.whole("width", 512),
        max_position_embeddings=max(512, _tokens("bert-small", source)),
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        attn_implementation="eager",
        **extra,
    )


def _bert(options: Options, source: Source, weights: str | None) -> nn.Module:
    from transformers import BertForSequenceClassification

    config = _bert_config(options, source, num_labels=_classes(options, source))
    return Logits(_from(BertForSequenceClassification, config, weights))


def _bert_mlm(options: Options, source: Source, weights: str | None) -> nn.Module:
    from transformers import BertForMaskedLM

    return Logits(_from(BertForMaskedLM, _bert_config(options, source), weights))


def _gpt2(options: Options, source: Source, weights: str | None) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    dropout = options.number("dropout", 0.1)
    config = GPT2Config(
        vocab_size=options.whole("vocabulary", source.vocabulary or 256),
        n_positions=_tokens("gpt2-mini", source),
        n_embd=options.whole("width", 256),
        n_layer=options.whole("blocks", 4),
        n_head=options.whole("heads", 4),
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        attn_implementation="eager",
    )
    return Logits(_from(GPT2LMHeadModel, config, weights))


ZOO: Mapping[str, Builder] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "transformer": _transformer,
    "mobilenet-v2": _mobilenet,
    "efficientnet-b1": _efficientnet,
    "resnet-50": _resnet,
    "bert-small": _bert,
    "bert-small-mlm": _bert_mlm,
    "gpt2-mini": _gpt2,
}
"""Name in a job file, and what builds it for a data set."""


def _from(model: Any, config: Any, weights: str | None) -> nn.Module:
    """Random weights, or those of a local directory (model.safetensors)."""
    if weights is None:
        built: nn.Module = model(config)
        return built
    path = Path(weights).expanduser()
    if not (path / "model.safetensors").is_file():
        raise InputError(
            f"There is no model.safetensors in {path}.", "Point model.weights at a directory with pretrained weights."
        )
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        loaded: nn.Module
        loaded, info = model.from_pretrained(
            path,
            config=config,
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise _unfit(path, str(error).splitlines()[0]) from None
    # A head for other classes begins with random weights, as in any fine-tuning; the rest has to be there.
    mismatched = [key[0] if isinstance(key, tuple) else key for key in info["mismatched_keys"]]
    prefix = f"{model.base_model_prefix}."
    lacking = sorted(key for key in (*info["missing_keys"], *mismatched) if key.startswith(prefix))
    if lacking:
        raise _unfit(path, f"{lacking[0]} is missing or has another shape ({len(lacking)} in all).")
    return loaded


def _unfit(path: Path, why: str) -> InputError:
    return InputError(
        f"The weights in {path} do not fit this model: {why}",
        "Use weights of this architecture, or mend model.options.",
    )


def _no_weights(name: str, weights: str | None) -> None:
    if weights is not None:
        raise InputError(f"The model {name} has no pretrained weights.", "Leave out model.weights.")


def _picture(name: str, source: Source) -> int:
    shape = source.inputs[0].shape
    if len(shape) != 3 or not source.inputs[0].dtype.startswith("float"):
        raise InputError(
            f"The model {name} takes pictures (channels, height, width), the data has {source.inputs[0]}.",
            "Choose another model, or data of pictures.",
        )
    return shape[0]


def _tokens(name: str, source: Source) -> int:
    first = source.inputs[0]
    if len(first.shape) != 1 or not first.dtype.startswith("int"):
        raise InputError(
            f"The model {name} takes rows of tokens, the data has {first}.", "Choose another model, or a text file."
        )
    return first.shape[0]


def _near(name: str) -> str:
    near = difflib.get_close_matches(name, list(ZOO), 1)
    return f" (did you mean {near[0]}?)" if near else ""


def choose(spec: ModelSpec, source: Source, seed: int) -> Chosen:
    """Build the model that a job names, for its data.

    Raises:
        InputError: unknown, cannot be imported, or does not take this data.
    """
    torch.manual_seed(seed)
    if ":" in spec.name:
        module = _users(spec)
    elif spec.name in ZOO:
        options = Options(spec.options, spec.name)
        options.used |= {"loss"}
        module = ZOO[spec.name](options, source, spec.weights)
        options.finish()
    else:
        raise InputError(
            f"There is no model {spec.name!r}{_near(spec.name)}.",
            f"Known: {', '.join(ZOO)}, or package.module:function of your own.",
        )
    is_class = source.target.dtype.startswith("int")
    kind = str(spec.options.get("loss", "cross_entropy" if is_class else "mse"))
    if kind not in ("cross_entropy", "mse"):
        raise InputError(f"There is no loss {kind!r}.", "Use cross_entropy or mse.")
    loss = LossSpec.model_validate({"kind": kind})
    return Chosen(spec.name, module, tuple(source.inputs), source.vocabulary or 2, loss)


def _users(spec: ModelSpec) -> nn.Module:
    """Import and call the user's function; their directory comes first, as with ``python -m``."""
    module_name, _, function_name = spec.name.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    options = {k: v for k, v in spec.options.items() if k != "loss"}
    try:
        function = getattr(importlib.import_module(module_name), function_name)
        module = function(**options)
    except Exception as error:  # the user's code may raise anything; it becomes one sentence
        raise InputError(
            f"The model {spec.name} cannot be made: {type(error).__name__}: {error}.",
            "Check that `python -c 'import " + module_name + "'` works where the coordinator runs.",
        ) from error
    if not isinstance(module, nn.Module):
        raise InputError(
            f"{spec.name} returned a {type(module).__name__}, not a torch.nn.Module.", "Return the module itself."
        )
    return module
