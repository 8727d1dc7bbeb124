"""Multi-head attention: grouped heads, positions, windows, sinks, a key/value cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard import masks
from regard.bias import Bias, CachedBias, GappedBias, bias_of_heads
from regard.contract import Attended, State, Traits
from regard.errors import RegardError, ShapeError
from regard.masks import Mask
from regard.mechanisms.from_recipe import FromRecipe
from regard.mechanisms.heads import Heads
from regard.mechanisms.inputs import Inputs, Widths, check_held
from regard.mechanisms.mixture import Mixture
from regard.mechanisms.positions import Position
from regard.mechanisms.scoring import Scoring
from regard.mechanisms.window import Window
from regard.recipe import Dot, Flex, Normaliser, Recipe, Sigmoid, Softmax
from regard.types import whole


class MultiHead(FromRecipe):
    """headᵢ = softmax(Q Wᵢᑫ (K Wᵢᴷ)ᵀ / √dₖ) V Wᵢⱽ, output = concat(heads) Wᴼ.

    Vaswani et al. 2017, "Attention is all you need", section 3.2.2. Grouped and multi-query heads:
    Ainslie et al. 2023. Gated heads: Qiu et al. 2025, "Gated attention for large language models",
    the gate after the attention.

    | here                         | paper         | shape                          |
    |------------------------------|---------------|--------------------------------|
    | `to_query`, `to_key`         | Wᑫ, Wᴷ        | width → heads or groups × dₖ   |
    | `to_value`                   | Wⱽ            | width → groups × dᵥ            |
    | `to_output`                  | Wᴼ            | heads × dᵥ → width             |
    | `n_heads`, `head_width`      | h, dₖ         |                                |
    | `value_width`                | dᵥ            | features of a head's values    |

    Each projection is Xavier-uniform by itself (`nn.MultiheadAttention` draws the stacked three
    as one matrix, which is narrower), biases 0.

    Args:
        width: features per position of queries and output.
        heads: how many heads, a divisor of `width`; or `Heads` with groups and widths.
        inputs: features of the keys and values that come in; both `width` when None.
        bias: whether the projections have one.
        dropout: of the weights, in training.
        position: `Rotary()`, `Alibi(n_heads)`, `RelativeBias(n_heads)`, `GridRotary(columns)`, …
        window: how far before and after its position a query sees, each a number or None; a
            `Window` can also let it see the first keys of all. A growing state keeps no others.
        scoring: scale, softcap, query-key norm, sinks, as a `Scoring`.
        normaliser: how scores become weights, as `Sparsemax()`; a softmax when None.
        mixture: how the attentions of several heads are mixed: `Differential(head_width)`,
            `TalkingHeads(n_heads)` or a `Mixture` of your own.
        gate: a module from queries to a number for each head, `nn.Linear(width, n_heads)`, or for
            each feature of each, `nn.Linear(width, n_heads * value_width)`: what the heads mixed
            is multiplied by its sigmoid.

    >>> import torch
    >>> from regard.mechanisms import Heads, MultiHead
    >>> attn = MultiHead(16, Heads(4, n_groups=2))
    >>> attended = attn(torch.randn(2, 5, 16), causal=True, weights=True)
    >>> attended.output.shape, attended.weights.shape
    (torch.Size([2, 5, 16]), torch.Size([2, 4, 5, 5]))
    """

    def __init__(
        self,
        width: int,
        heads: int | Heads,
        *,
        inputs: tuple[int, int] | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        position: Position | None = None,
        window: Window | tuple[int | None, int | None] | None = None,
        scoring: Scoring | None = None,
        normaliser: Normaliser | None = None,
        mixture: Mixture | None = None,
        gate: nn.Module | None = None,
    ) -> None:
        super().__init__()
        for name, module, kind, example in (
            ("position", position, Position, "Rotary()"),
            ("scoring", scoring, Scoring, "Scoring(sinks=True)"),
            ("normaliser", normaliser, Normaliser, "Sparsemax()"),
            ("mixture", mixture, Mixture, "TalkingHeads(n_heads)"),
            ("gate", gate, nn.Module, "nn.Linear(width, n_heads)"),
        ):
            if module is not None and not isinstance(module, kind):
                raise RegardError(f"MultiHead: {name}={module!r}, expected a part, as {example}")
        if isinstance(window, tuple) and len(window) == 2:
            window = Window(*window)
        if window is not None and not isinstance(window, Window):
            raise RegardError(
                f"MultiHead: window={window!r}, expected a Window or a tuple of two, (left, right)"
            )
        if inputs is not None and (not isinstance(inputs, tuple) or len(inputs) != 2):
            raise RegardError(f"MultiHead: inputs={inputs!r}, expected a tuple of two")
        heads = heads if isinstance(heads, Heads) else Heads(heads)
        scoring = Scoring() if scoring is None else scoring
        self.n_heads, self.n_groups, self.head_width, self.value_width = heads.fitted(width)
        self.mixture = mixture
        self.dropout = dropout
        key_in, value_in = inputs or (width, width)
        self.sizes = Widths(width, key_in, value_in)
        self.to_query = nn.Linear(
            width, self._score_heads(self.n_heads) * self.head_width, bias=bias
        )
        self.to_key = nn.Linear(
            key_in, self._score_heads(self.n_groups) * self.head_width, bias=bias
        )
        self.to_value = nn.Linear(value_in, self.n_groups * self.value_width, bias=bias)
        self.to_output = nn.Linear(self.n_heads * self.value_width, width, bias=bias)
        for linear in (self.to_query, self.to_key, self.to_value, self.to_output):
            nn.init.xavier_uniform_(linear.weight)
            if bias:
                nn.init.zeros_(linear.bias)
        self.position = position
        self.window = None if window is None else window.band
        self.cache = window if window is not None and window.in_cache else None
        self.scale = self.head_width**-0.5 if scoring.scale is None else scoring.scale
        self.softcap = scoring.softcap
        self.score_function = scoring.function
        if scoring.function is not None and mixture is not None:
            raise RegardError("MultiHead: a score function and a mixture are not offered together")
        if scoring.function is not None and self.cache is not None:
            raise RegardError(
                "MultiHead: a score function is told positions in the text, expected a window "
                "without in_cache"
            )
        self.query_norm, self.key_norm = scoring.norms or (nn.Identity(), nn.Identity())
        self.sinks = (
            nn.Parameter(torch.zeros(self._score_heads(self.n_heads))) if scoring.sinks else None
        )
        self.normaliser = Softmax() if normaliser is None else normaliser
        if scoring.sinks and isinstance(normaliser, Sigmoid):
            raise RegardError(
                "MultiHead: sinks with Sigmoid(): its weights do not share a sum that a sink could "
                "take from"
            )
        self.gate = gate
        self.kind = "partial" if scoring.sinks else self.normaliser.kind
        if mixture is not None:
            self.kind = mixture.kind
        ordered = (position, window, scoring.function)
        self.traits = Traits(order_matters=any(part is not None for part in ordered))

    def _score_heads(self, heads: int) -> int:
        """How many heads of queries, or groups of keys, are scored for so many heads or groups."""
        return heads if self.mixture is None else self.mixture.score_heads(heads)

    def prepare(self, key: Tensor, value: Tensor, *, start: int = 0) -> tuple[Tensor, Tensor]:
        keys = self.to_key(key).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        keys = self.key_norm(keys)  # (batch, group, key, head width)
        position = self.position
        if position is not None and self.cache is None:
            keys = position.turn(keys, start)
        values = self.to_value(value).unflatten(-1, (self.n_groups, self.value_width))
        return keys, values.transpose(1, 2)  # (batch, group, key, value width)

    def widths(self, query_width: int) -> Widths:
        return self.sizes

    def recipe(self, inputs: Inputs, bias: Tensor | Bias | None) -> Recipe:
        if inputs.state is not None and not inputs.state.growing:
            batch, _, _, n_keys = inputs.shape
            check_held(  # it may be another module's, and its groups would still divide
                type(self).__name__,
                inputs.key,
                inputs.value,
                (batch, self._score_heads(self.n_groups), n_keys, self.head_width),
                (batch, self.n_groups, n_keys, self.value_width),
            )
        queries = self.to_query(inputs.query).unflatten(-1, (-1, self.head_width))
        queries = self.query_norm(queries.transpose(1, 2))  # (batch, head, query, head width)
        queries, keys = self._turned(queries, inputs)
        mask, bias = masks.both(inputs.mask, self.window), self._bias(bias, inputs)
        if self.mixture is not None:
            owners = [head % self.n_heads for head in range(self._score_heads(self.n_heads))]
            mask = None if mask is None else mask.of_heads(owners)
            bias = bias_of_heads(bias, owners)
        if self.score_function is not None:
            return self._with_function(queries, keys, inputs, mask, bias)
        scored = Dot(
            queries,
            keys,
            inputs.value if self.mixture is None else None,
            mask=mask,
            bias=bias,
            scale=self.scale,
            softcap=self.softcap,
            sink=self.sinks,
            normaliser=self.normaliser,
        )
        return scored if self.mixture is None else self.mixture.recipe(scored, inputs.value)

    def _turned(self, queries: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Queries and keys with their positions worked in: of the text, or in the cache."""
        position, cache, (_, _, n_queries, n_keys) = self.position, self.cache, inputs.shape
        if position is None:
            return queries, inputs.key
        if cache is None:
            return position.turn(queries, inputs.text.keys - n_queries), inputs.key
        near = position.turn(queries, n_keys - n_queries)
        keys = position.turn(inputs.key, 0)
        compiling = torch.compiler.is_compiling()  # a graph must not depend on lengths
        if cache.first == 0 or (not compiling and n_keys <= cache.edge + 1):
            return near, keys
        # From the first keys, queries behind the edge stand at it: they have features of their own.
        alone = queries.transpose(1, 2).flatten(0, 1)[:, :, None]  # (batch · query, head, 1, width)
        edged = position.turn(alone, cache.edge)[:, :, 0]
        edged = edged.unflatten(0, (inputs.shape.batch, n_queries))
        positions = torch.arange(n_queries, device=keys.device) + (n_keys - n_queries)
        far = torch.where((positions > cache.edge)[:, None], edged.transpose(1, 2), near)
        is_first = (torch.arange(n_keys, device=keys.device) < cache.first)[:, None]
        halves = [keys.masked_fill(is_first, 0.0), keys.masked_fill(~is_first, 0.0)]
        return torch.cat([near, far], dim=-1), torch.cat(halves, dim=-1)

    def _with_function(
        self,
        queries: Tensor,
        keys: Tensor,
        inputs: Inputs,
        mask: Mask | None,
        bias: Tensor | Bias | None,
    ) -> Flex:
        """The recipe whose scores a function makes, told positions in the text."""
        device, text = queries.device, inputs.text.keys
        positions = torch.arange(text, device=device)
        return Flex(
            queries,
            keys,
            torch.arange(inputs.shape.batch, device=device),
            torch.arange(self.n_heads, device=device),
            inputs.value,
            score_mod=self.score_function,
            scale=self.scale,
            mask=mask,
            bias=bias,
            sink=self.sinks,
            normaliser=self.normaliser,
            query_positions=torch.arange(inputs.shape.queries, device=device)
            + (text - inputs.shape.queries),
            key_positions=torch.cat([positions[: inputs.gap.start], positions[inputs.gap.stop :]]),
        )

    def modulate(self, mixed: Tensor, query: Tensor) -> Tensor:
        if self.mixture is not None:
            mixed = self.mixture.finish(mixed)
        if self.gate is None:
            return mixed
        gates: Tensor = self.gate(query).sigmoid()  # (batch, query, head or head · value width)
        features = self.n_heads * self.value_width
        if gates.shape[-1] not in (self.n_heads, features):
            raise ShapeError(
                f"MultiHead: gate: axis width has size {gates.shape[-1]}, expected "
                f"{self.n_heads}, the heads, or {features}, heads × value width"
            )
        by_head: Tensor = gates.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        return mixed * by_head

    def finish(self, mixed: Tensor, recipe: Recipe) -> Tensor:
        output: Tensor = self.to_output(mixed.transpose(1, 2).flatten(2))
        return self._silenced(output, recipe)

    def _silenced(self, output: Tensor, recipe: Recipe) -> Tensor:
        """The projection's bias must not speak for a query that attends to nothing."""
        if recipe.shape.keys == 0:
            return torch.zeros_like(output)
        mask = getattr(recipe, "mask", None)
        if mask is None or (isinstance(self.to_output, nn.Linear) and self.to_output.bias is None):
            return output
        awake = mask.awake(recipe.shape.queries, recipe.shape.keys, output.device)
        if awake is None:
            return output
        return output.masked_fill(~awake.any(1).to(output.device)[..., None], 0.0)

    def after(self, inputs: Inputs, recipe: Recipe, attended: Attended) -> State | None:
        state, window = inputs.state, self.window
        if state is None or not state.growing or window is None or window.left is None:
            return state
        # The next queries stand behind all keys, or reach back as far as these did.
        new = inputs.shape.keys - inputs.held
        last = window.left + max(0, inputs.shape.queries - new)
        return state.windowed(window.first, last)

    def _bias(self, bias: Tensor | Bias | None, inputs: Inputs) -> Tensor | Bias | None:
        position = self.position
        own = None if position is None else _position_bias(position, self.n_heads)
        if own is not None and self.cache is not None:
            own = CachedBias(own, self.cache.first, self.cache.edge)
        elif own is not None and inputs.gap.stop:
            own = GappedBias(own, inputs.gap.start, inputs.gap.stop)
        if bias is None or own is None:
            return own if bias is None else bias
        block = whole(inputs.shape.queries, inputs.shape.keys)
        return own.block(block) + (bias.block(block) if isinstance(bias, Bias) else bias)

    def extra_repr(self) -> str:
        """What `print(module)` shows besides the projections."""
        parts = [
            f"{self.n_heads} heads",
            f"{self.n_groups} groups",
            f"head width {self.head_width}",
        ]
        if self.window is not None:
            parts.append(repr(self.window))
        if self.softcap is not None:
            parts.append(f"softcap {self.softcap}")
        if self.score_function is not None:
            parts.append("a score function")
        if self.sinks is not None:
            parts.append("sinks")
        if not isinstance(self.normaliser, Softmax):
            parts.append(repr(self.normaliser))
        if self.dropout:
            parts.append(f"dropout {self.dropout}")
        return ", ".join(parts)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> MultiHead:
        """The same attention as an `nn.MultiheadAttention`, with its weights copied.

        Its masks mean the opposite of ours: `masks.from_torch` converts them.
        """
        if not isinstance(module, nn.MultiheadAttention):
            raise RegardError(
                f"MultiHead.from_torch: {type(module).__name__}, expected nn.MultiheadAttention"
            )
        if module.bias_k is not None or module.add_zero_attn:
            raise RegardError(
                "MultiHead.from_torch: add_bias_kv and add_zero_attn are not supported"
            )
        width, key_in, value_in = module.embed_dim, module.kdim, module.vdim
        assert key_in is not None and value_in is not None
        stacked = module.in_proj_weight is not None
        mine = cls(
            width,
            module.num_heads,
            inputs=(key_in, value_in),
            bias=module.in_proj_bias is not None,
            dropout=module.dropout,
        ).to(module.out_proj.weight.device, module.out_proj.weight.dtype)
        projections = (mine.to_query, mine.to_key, mine.to_value)
        separate = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        with torch.no_grad():
            for i, linear in enumerate(projections):
                rows = slice(i * width, (i + 1) * width)
                linear.weight.copy_(module.in_proj_weight[rows] if stacked else separate[i])
                if module.in_proj_bias is not None:
                    linear.bias.copy_(module.in_proj_bias[rows])
            mine.to_output.weight.copy_(module.out_proj.weight)
            if module.out_proj.bias is not None:
                mine.to_output.bias.copy_(module.out_proj.bias)
        return mine.train(module.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """The same attention as a batch-first `nn.MultiheadAttention`, where it can say it."""
        width = self.sizes.query
        assert width is not None
        plain = self.n_groups == self.n_heads and self.head_width * self.n_heads == width
        plain = plain and self.value_width == self.head_width and self.position is None
        parts = self.window, self.sinks, self.softcap, self.score_function, self.mixture, self.gate
        plain = plain and all(part is None for part in parts)
        plain = plain and self.scale == self.head_width**-0.5
        plain = plain and isinstance(self.normaliser, Softmax)
        normed = any(not isinstance(m, nn.Identity) for m in (self.query_norm, self.key_norm))
        linears = (self.to_query, self.to_key, self.to_value, self.to_output)
        if not plain or normed or not all(isinstance(linear, nn.Linear) for linear in linears):
            raise RegardError(
                "MultiHead.to_torch: nn.MultiheadAttention has no grouped heads, other head "
                "widths, positions, windows, scoring, normalisers, mixtures, gates or projections "
                "other than nn.Linear"
            )
        theirs = nn.MultiheadAttention(
            width,
            self.n_heads,
            dropout=self.dropout,
            bias=self.to_query.bias is not None,
            kdim=self.to_key.in_features,
            vdim=self.to_value.in_features,
            batch_first=True,
        ).to(self.to_query.weight.device, self.to_query.weight.dtype)
        projections = (self.to_query, self.to_key, self.to_value)
        separate = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
        with torch.no_grad():
            for i, linear in enumerate(projections):
                rows = slice(i * width, (i + 1) * width)
                into = separate[i] if theirs.in_proj_weight is None else theirs.in_proj_weight[rows]
                into.copy_(linear.weight)
                if theirs.in_proj_bias is not None:
                    theirs.in_proj_bias[rows].copy_(linear.bias)
            theirs.out_proj.weight.copy_(self.to_output.weight)
            if theirs.out_proj.bias is not None:
                theirs.out_proj.bias.copy_(self.to_output.bias)
        return theirs.train(self.training)


def _position_bias(position: Position, n_heads: int) -> Bias | None:
    """The bias of a position, after checking that it is for so many heads."""
    bias = position.bias()
    if bias is not None and bias.heads not in (1, n_heads):
        raise ShapeError(
            f"MultiHead: position: {type(position).__name__} has {bias.heads} heads, "
            f"expected {n_heads}"
        )
    return bias
