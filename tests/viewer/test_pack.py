"""What a page holds is what the records say, as exactly as it says it does."""

import json

import decoding
import pytest
import torch
from torch import nn
from viewer_traces import gated

import regard
from regard import masks
from regard.aggregate import Words
from regard.errors import RegardError
from regard.mechanisms import MultiHead
from regard.memory import NTM
from regard.recipe import Dot, Given
from regard.record import Record, Trace
from regard.record.site import Site
from regard.record.stored_attention import StoredRecipe
from regard.viewer import forms, plan
from regard.viewer.pack import packed
from regard.viewer.scene import PageOptions, Scene, scenes_of


def record(recipe, name="layer.0.attention", attends="self"):
    site = Site(name, "Test", "", "", attends=attends)
    return Record(
        site, StoredRecipe(recipe), shape=recipe.shape, kind=recipe.kind, dtype=recipe.dtype
    )


def dot(queries=64, keys=64, heads=2, groups=None, batch=1, dtype=torch.float32, **more):
    torch.manual_seed(0)
    query = torch.randn(batch, heads, queries, 8, dtype=dtype) * 2
    key = torch.randn(batch, groups or heads, keys, 8, dtype=dtype)
    return Dot(query, key, scale=8**-0.5, **more)


def _one_of(size):
    return Trace([record(dot(size, size))])


@pytest.fixture
def not_exact(monkeypatch):
    """Forms of long traces, on short ones."""
    monkeypatch.setattr(plan, "_EXACT", 0)


def _scene(recipe):
    return Scene.of(Trace([record(recipe)]))


def maps(scene, budget=25_000_000):
    found = packed(scene, budget)
    return found, [
        torch.stack(
            [
                decoding.weights(found, site["maps"][head], site["queries"], site["keys"])
                for head in range(site["heads"])
            ]
        )
        for site in found.manifest["sites"]
    ]


class TestForms:
    def test_a_short_trace_keeps_every_weight(self):
        recipe = dot()
        found, (weights,) = maps(Scene.of(Trace([record(recipe)])))
        assert torch.equal(weights.float(), recipe.weights()[0])
        assert "exactly" in found.manifest["note"]

    def test_a_file_makes_thumbnails_of_weights_that_it_keeps(self, monkeypatch):
        scene = Scene.of(_one_of(64))
        assert packed(scene, thumbnails=False).manifest["sites"][0]["thumbnails"] is None
        assert packed(scene).manifest["sites"][0]["thumbnails"]["shape"] == [2, 64, 64]
        monkeypatch.setattr(plan, "_EXACT", 0)  # of other forms it would have to make each map
        assert packed(scene, thumbnails=False).manifest["sites"][0]["thumbnails"]

    def test_the_figures_of_heads_at_once_are_those_of_each(self):
        two = dot(heads=3, batch=2)
        alone = Dot(two.query[:1], two.key[:1], scale=two.scale)
        sites = [packed(_scene(recipe)).manifest["sites"][0] for recipe in (two, alone)]
        assert len(sites[0]["types"]) == 3
        for name in ("types", "entropy", "distance"):
            assert sites[0][name] == sites[1][name]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
    def test_factors_are_as_near_as_the_page_says(self, not_exact, dtype):
        recipe = dot(dtype=dtype)
        found, (weights,) = maps(Scene.of(Trace([record(recipe)])))
        assert found.manifest["sites"][0]["maps"][0]["kind"] == "factors"
        said = float(found.manifest["note"].split("within ")[1].split()[0])
        apart = (weights - recipe.weights()[0].double()).abs().max()
        assert apart <= said + 1e-7
        assert said < 1e-3

    @pytest.mark.parametrize(
        "mask",
        [
            masks.causal(),
            masks.padding(torch.arange(64)[None] < 31),
            masks.causal() & masks.window(5, 0),
            masks.causal() & masks.padding(torch.arange(64)[None] >= 3),  # rows of nothing
        ],
        ids=["causal", "padding", "window", "empty rows"],
    )
    def test_factors_keep_masks(self, not_exact, mask):
        recipe = dot(mask=mask)
        found, (weights,) = maps(Scene.of(Trace([record(recipe)])))
        assert found.manifest["sites"][0]["maps"][0]["kind"] == "factors"
        exact = recipe.weights()[0].double()
        assert (weights - exact).abs().max() < 1e-3
        assert torch.equal(weights == 0, exact == 0)

    def test_grouped_heads_and_sinks(self, not_exact):
        recipe = dot(heads=4, groups=2, sink=torch.tensor([0.0, 1.0, 2.0, -1.0]))
        _, (weights,) = maps(Scene.of(Trace([record(recipe)])))
        assert (weights - recipe.weights()[0]).abs().max() < 1e-3

    @pytest.mark.parametrize(
        "recipe",
        [
            dot(bias=torch.randn(1, 2, 64, 64)),
            dot(softcap=3.0),
            dot(mask=masks.pairs(torch.rand(1, 1, 64, 64) > 0.5)),
        ],
        ids=["bias", "softcap", "scattered mask"],
    )
    def test_what_is_no_plain_product_is_right_too(self, not_exact, recipe):
        found, (weights,) = maps(Scene.of(Trace([record(recipe)])))
        exact = recipe.weights()[0].double()
        assert found.manifest["sites"][0]["maps"][0]["kind"] == "codes"
        assert ((weights - exact).abs() <= exact.sqrt() / 8191 + 1e-6).all()

    def test_numbers_beyond_16_bits_are_factors_too(self, not_exact):
        recipe = dot()
        recipe = Dot(recipe.query * 1e5, recipe.key * 1e-5, scale=recipe.scale)
        found, (weights,) = maps(Scene.of(Trace([record(recipe)])))
        assert found.manifest["sites"][0]["maps"][0]["kind"] == "factors"
        assert (weights - recipe.weights()[0]).abs().max() < 1e-4

    def test_a_head_whose_factors_are_far_off_keeps_its_largest_within_the_budget(self, not_exact):
        recipe, far = dot(300, 300, 4), torch.zeros(4, 1, 8)
        far[2, 0, 0] = 1e7  # a constant that 16 bits keep at the cost of the rest
        recipe = Dot(recipe.query, recipe.key + far, scale=recipe.scale)
        recipe.query[..., 0] = 0.5
        recipe = Dot(recipe.query.double(), recipe.key.double(), scale=recipe.scale)
        found, (weights,) = maps(Scene.of(Trace([record(recipe)])), 250_000)
        kinds = [form["kind"] for form in found.manifest["sites"][0]["maps"]]
        assert kinds == ["factors", "factors", "largest", "factors"]
        assert sum(map(len, found.chunks)) * 4 / 3 < 250_000
        exact = recipe.weights()[0]
        stored = weights.isfinite()
        assert stored[[0, 1, 3]].all() and 0.01 < stored[2].double().mean() < 0.5
        assert (weights - exact)[stored].abs().max() < 1e-3
        assert (stored[2].sum(1) >= 2).all()
        least = torch.where(stored[2], exact[2], 1.0).amin(1)
        assert (torch.where(stored[2], 0.0, exact[2]).amax(1) <= least + 1e-9).all()
        assert found.manifest["note"].startswith("Layer 0 head 2: the ")
        assert "All other heads: weights are multiplied" in found.manifest["note"]

    def test_signed_weights(self, not_exact):
        torch.manual_seed(0)
        given = Given(torch.randn(1, 2, 12, 12), None, "signed")
        found, (weights,) = maps(Scene.of(Trace([record(given)])))
        assert (weights - given.matrix[0]).abs().max() <= given.matrix.abs().max() / 8191
        assert found.manifest["sites"][0]["types"] is None
        assert "rollout" not in found.manifest["parts"][0]["maps"]

    @pytest.mark.parametrize("more", [{}, {"bias": torch.ones(1, 2, 64, 64)}, {"softcap": 5.0}])
    def test_queries_and_keys_are_kept_where_their_products_are_the_scores(self, more):
        found, _ = maps(Scene.of(Trace([record(dot(**more))])))
        assert (found.manifest["sites"][0]["features"] is None) == bool(more)

    def test_the_largest_beside_factors_are_32_bit_numbers(self, not_exact):
        recipe = dot()
        found, (weights,) = maps(Scene.of(Trace([record(recipe)])))
        exact = recipe.weights()[0].double()
        places = exact.topk(forms.LARGEST, dim=-1).indices
        got, true = weights.gather(-1, places), exact.gather(-1, places)
        torch.testing.assert_close(got, true, rtol=2e-6, atol=0.0)
        assert "the 8 largest of each row are kept as 32-bit numbers" in found.manifest["note"]

    @pytest.mark.parametrize("kind", ["distribution", "signed"])
    @pytest.mark.parametrize(("queries", "keys"), [(400, 400), (130, 700)])
    def test_a_small_budget_keeps_the_largest_of_each_row(self, not_exact, kind, queries, keys):
        generator = torch.Generator().manual_seed(0)
        weights = torch.randn(1, 4, queries, keys, generator=generator).mul(3)
        if kind == "distribution":
            future = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)
            weights = weights.masked_fill(future, -torch.inf).softmax(-1)
        given = Given(weights, None, kind)
        found, (got,) = maps(Scene.of(Trace([record(given)])), 250_000)
        exact, stored = weights[0].double(), got.isfinite()
        site = found.manifest["sites"][0]
        form = site["maps"][1]
        assert form["kind"] == "largest"
        assert form["count"] >= 4
        assert 0.7 * 250_000 < sum(map(len, found.chunks)) * 4 / 3 < 250_000
        peak = exact.abs().amax((1, 2), keepdim=True)
        assert ((got - exact).abs() <= (exact.abs() * peak).sqrt() / 2047 * 1.001 + 1e-7)[
            stored
        ].all()
        assert stored[exact == 0].all()  # what is masked is known
        rest = torch.where(stored, 0.0, exact).abs().amax(2)
        least = torch.where(stored & (exact != 0), exact.abs(), 1e9).amin(2)
        assert (rest <= least).all()
        means = decoding.coded(found, form["means"])
        true = torch.nn.functional.avg_pool2d(weights[0, 1:2], form["side"], ceil_mode=True)[0]
        error = (true.abs() * true.abs().max()).sqrt() / 255 * 1.01 + 1e-5 * true.abs().max()
        assert ((means - true).abs() <= error).all()
        received = decoding.coded(found, form["received"])
        assert (received - exact[1].mean(0)).abs().max() <= received.abs().max() / 8191 + 1e-6
        assert f"he {form['count']} largest of each row are stored" in found.manifest["note"]

    def test_a_budget_that_holds_nothing_is_refused(self):
        with pytest.raises(RegardError, match="budget=10, expected at least"):
            packed(Scene.of(Trace([record(dot())])), 10)


class TestMaps:
    def test_maps_over_all_layers(self):
        trace = Trace([record(dot(), f"layer.{n}.attention") for n in range(3)])
        found = packed(Scene.of(trace))
        forms_of = found.manifest["parts"][0]["maps"]
        got = {n: decoding.weights(found, form, 64, 64) for n, form in forms_of.items()}
        all_weights = torch.cat([one.weights()[0] for one in trace])
        assert torch.allclose(got["mean"].float(), all_weights.mean(0))
        assert torch.equal(got["max"].float(), all_weights.amax(0))
        assert torch.allclose(got["rollout"].float(), regard.rollout(trace)[0], atol=1e-6)
        assert "relevance" not in got

    def test_relevance_where_there_is_a_gradient(self):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True, dropout=0.0)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        with regard.capture(model, grad=True) as trace:
            model(torch.randn(2, 5, 16))[1, 0, 0].backward()
        found = packed(Scene.of(trace, example=1))
        form = found.manifest["parts"][0]["maps"]["relevance"]
        got = decoding.weights(found, form, 5, 5)
        assert torch.allclose(got.float(), regard.relevance(trace)[1], atol=1e-6)

    def test_relevance_as_codes(self, not_exact):
        """Relevance exceeds 1, unlike weights."""
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True, dropout=0.0)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        with regard.capture(model, grad=True) as trace:
            (1000 * model(torch.randn(1, 30, 16))[0, 0, 0]).backward()
        exact = regard.relevance(trace)[0].double()
        assert exact.max() > 5
        found = packed(Scene.of(trace))
        form = found.manifest["parts"][0]["maps"]["relevance"]
        assert form["kind"] == "codes"
        got = decoding.weights(found, form, 30, 30)
        assert ((got - exact).abs() <= (exact * exact.max()).sqrt() / 8191 + 1e-6).all()

    def test_thumbnails_keep_the_strongest(self):
        weights = torch.zeros(1, 1, 300, 300)
        weights[0, 0, :, 7] = 0.5
        weights[0, 0, 123, 201] = 0.5
        found = packed(Scene.of(Trace([record(Given(weights, None, "partial"))])))
        chunk = found.manifest["sites"][0]["thumbnails"]
        small = decoding.array(found, chunk)
        assert chunk["shape"] == [1, 64, 64]
        assert small[0, 123 * 64 // 300, 201 * 64 // 300] == 255

    def test_heads_have_types(self):
        found = packed(Scene.of(Trace([record(Given(torch.eye(9).roll(1, 0)[None, None]))])))
        assert found.manifest["sites"][0]["types"] == ["previous"]


class TestScene:
    def test_example_of_a_batch(self):
        recipe = dot(batch=3)
        _, (weights,) = maps(Scene.of(Trace([record(recipe)]), example=2))
        assert torch.equal(weights.float(), recipe.weights()[2])
        with pytest.raises(RegardError, match="example=3, expected from 0 to 2"):
            Scene.of(Trace([record(recipe)]), example=3)

    def test_words_are_read_from_marks(self):
        tokens = ["[CLS]", "un", "##believable", "news", "[SEP]"]
        trace = Trace([record(dot(5, 5))]).with_tokens(tokens)
        (line,) = Scene.of(trace).lines
        assert line.words is not None
        assert line.words.names == ["[CLS]", "unbelievable", "news", "[SEP]"]
        assert line.special == [True, False, False, False, True]

    def test_types_are_of_the_example_shown_without_its_padding(self):
        alone = dot(12, 12, 6)
        padded = Dot(
            torch.cat([alone.query, torch.randn(1, 6, 8, 8)], 2).repeat(2, 1, 1, 1),
            torch.cat([alone.key, torch.randn(1, 6, 8, 8)], 2).repeat(2, 1, 1, 1),
            scale=alone.scale,
            mask=masks.padding(torch.stack([torch.arange(20) < 12, torch.arange(20) < 20])),
        )
        one = packed(Scene.of(Trace([record(alone)]))).manifest["sites"][0]["types"]
        two = packed(Scene.of(Trace([record(padded)]))).manifest["sites"][0]["types"]
        assert one == two

    def test_words_stay_with_their_tokens(self):
        words = Words.given([0, 0, 1, 2], ["a", "##b", "c", "d"])
        trace = Trace(
            [
                record(dot(4, 4), "encoder.0", "self"),
                record(dot(4, 4), "decoder.0.self", "self"),
                record(dot(4, 4), "decoder.0.cross", "cross"),
            ]
        )
        sides = {"encoder.0": words.tokens, "decoder.0.self": list("wxyz")}
        told = [
            r.with_tokens(sides.get(r.name, list("wxyz")), sides.get(r.name, words.tokens))
            for r in trace
        ]
        encoder, decoder = Scene.of(Trace(told), words=words).lines
        assert encoder.words is words
        assert decoder.tokens == list("wxyz")
        assert decoder.words is None

    def test_words_of_two_traces(self):
        both = [Words.given([0, 0, 1], list("abc")), Words.given([0, 1, 1, 2], list("wxyz"))]
        first, second = scenes_of([_one_of(3), _one_of(4)], PageOptions(words=both))
        assert first.lines[0].words is both[0]
        assert second.lines[0].words is both[1]
        with pytest.raises(RegardError, match="words of 4 pieces fit no attention"):
            scenes_of([_one_of(3), _one_of(5)], PageOptions(words=both))

    def test_given_words(self):
        words = Words.given([0, 0, 1], ["a", "b", "c"])
        (line,) = Scene.of(Trace([record(dot(3, 3))]), words=words).lines
        assert line.words is words
        assert line.tokens == ["a", "b", "c"]
        with pytest.raises(RegardError, match="words of 3 pieces fit no attention"):
            Scene.of(Trace([record(dot(4, 4))]), words=words)

    def test_parts_of_an_encoder_and_decoder(self):
        torch.manual_seed(0)
        model = nn.Transformer(16, 2, 2, 2, 16, batch_first=True, dropout=0.0).eval()
        with torch.no_grad(), regard.capture(model) as trace:
            model(torch.randn(1, 4, 16), torch.randn(1, 4, 16))
        scene = Scene.of(trace)
        assert [part.name for part in scene.parts] == ["encoder", "decoder", "cross"]
        cross = scene.sites[scene.parts[2].sites[0]]
        assert cross.queries != cross.keys  # as long as each other, and yet two sequences
        assert cross.queries == scene.sites[scene.parts[1].sites[0]].queries
        assert cross.keys == scene.sites[scene.parts[0].sites[0]].queries

    def test_sites_of_several_sizes_are_parts_of_their_own(self):
        trace = Trace([record(dot(4, 4), "stage.0"), record(dot(9, 9), "stage.1")])
        assert [part.label for part in Scene.of(trace).parts] == [
            "self-attention, 4 × 4",
            "self-attention, 9 × 9",
        ]

    def test_calls_of_one_layer_are_numbered(self):
        records = [record(dot(4, 4), "layer.0") for _ in range(3)]
        sites = packed(Scene.of(Trace(records))).manifest["sites"]
        assert [site["layer"] for site in sites] == [0, 1, 2]

    def test_sites_of_a_memory_have_names_and_no_layer(self):
        trace = NTM(3, 2, slots=5, slot_width=4)(torch.randn(1, 6, 3), weights=True).trace
        manifest = packed(Scene.of(trace)).manifest
        assert [site["label"] for site in manifest["sites"]] == ["read", "write"]
        assert manifest["title"] == "attention of read, write"

    @pytest.mark.parametrize(
        "paths", [["layer.0", "layer.1"], ["attention", "attention"], ["a.one", "a.two"]]
    )
    def test_layers_have_numbers_and_no_label(self, paths):
        scene = Scene.of(Trace([record(dot(4, 4), path) for path in paths]))
        assert [site["label"] for site in packed(scene).manifest["sites"]] == [None, None]
        assert scene.title == "attention of 2 layers"

    def test_a_generation_is_stitched(self):
        torch.manual_seed(0)
        model = MultiHead(8, 2).eval()
        with torch.no_grad(), regard.capture(model) as trace:
            state = model(torch.randn(1, 3, 8), causal=True, state=True).state
            for _ in range(2):
                state = model(torch.randn(1, 1, 8), causal=True, state=state).state
        scene = Scene.of(trace)
        assert scene.prompt == 3
        assert scene.sites[0].record.shape[2:] == (5, 5)

    def test_a_generation_of_an_encoder_and_decoder(self):
        import transformers

        torch.manual_seed(0)
        config = transformers.T5Config(
            vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
            decoder_start_token_id=0, pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
        model = transformers.T5ForConditionalGeneration(config).eval()
        with torch.no_grad(), regard.capture(model) as trace:
            model.generate(torch.randint(1, 32, (1, 12)), max_new_tokens=6, do_sample=False)
        scene = Scene.of(trace)
        decoder = next(part for part in scene.parts if part.name == "decoder")
        assert scene.prompt == 1
        assert scene.grows == scene.sites[decoder.sites[0]].queries
        steps = packed(scene).manifest["steps"]
        assert steps == {"prompt": 1, "sequence": scene.grows}

    def test_tensors(self):
        weights = torch.eye(3).expand(2, 4, 3, 3)
        scene = Scene.of(weights, axes="layer head query key")
        assert len(scene.sites) == 2
        assert scene.sites[0].record.shape == (1, 4, 3, 3)

    def test_weights_that_are_no_numbers_are_named(self):
        recipe = dot(6, 6)
        recipe.query[0, 1, 2] = torch.nan
        with pytest.raises(RegardError, match=r"layer\.0\.attention, head 1: .* not finite"):
            packed(Scene.of(Trace([record(recipe)])))

    def test_nothing_to_show_is_said(self):
        with pytest.raises(RegardError, match="the trace is empty"):
            Scene.of(Trace([]))
        dropped = record(dot())
        dropped.drop()
        with pytest.raises(RegardError, match="dropped"):
            Scene.of(Trace([dropped]))
        with pytest.raises(RegardError, match="prompt=0, expected a number of tokens from 1 to 64"):
            Scene.of(Trace([record(dot())]), prompt=0)


class TestPicture:
    def test_an_image_and_its_patches(self):
        weights = torch.full((1, 1, 17, 17), 1 / 17)
        image = torch.rand(3, 20, 20)
        manifest = packed(Scene.of(weights, image=image)).manifest
        said = manifest["image"]
        assert (said["rows"], said["columns"], said["first"]) == (4, 4, 1)
        pixels = _opened(said["source"])
        assert torch.allclose(pixels, image.permute(1, 2, 0), atol=1 / 255)

    @pytest.mark.parametrize("shape", [(1, 20, 20), (20, 20, 1)])
    def test_a_grey_image(self, shape):
        weights, grey = torch.full((1, 1, 17, 17), 1 / 17), torch.rand(20, 20)
        said = packed(Scene.of(weights, image=grey.view(shape))).manifest["image"]
        pixels = _opened(said["source"])
        assert torch.allclose(pixels, torch.stack([grey] * 3, -1), atol=1 / 255)

    def test_wrong_images(self):
        weights = torch.full((1, 1, 17, 17), 1 / 17)
        with pytest.raises(RegardError, match=r"expected \(row, column, 3\)"):
            Scene.of(weights, image=torch.rand(20, 20))
        with pytest.raises(RegardError, match="divide by 255"):
            Scene.of(weights, image=torch.randint(255, (20, 20, 3)))
        with pytest.raises(RegardError, match="5 × 5 patches, but the longest sequence has 17"):
            Scene.of(weights, image=torch.rand(20, 20, 3), patches=(5, 5))

    def test_tokens_that_ask_an_image_begin_with_the_clearest_head_and_row(self):
        weights = torch.full((1, 3, 4, 16), 1 / 16)
        weights[0, 1] = torch.eye(16)[5]  # sharp, whoever asks
        weights[0, 2, 3] = torch.eye(16)[9]
        picture = torch.rand(3, 20, 20)
        layers = [torch.full((1, 3, 4, 16), 1 / 16), weights]
        start = Scene.of(layers, image=picture).start
        assert start == "part=0&layer=1&head=2&selected=3"
        chosen = Scene.of(layers, image=picture, start="layer=0").start
        assert chosen == "layer=0"
        square = torch.full((1, 3, 16, 16), 1 / 16)
        assert Scene.of(square, image=picture).start == ""

    def test_gates_lie_over_the_image_each_by_its_own_grid(self):
        drawn = gated()
        scene = Scene.of(drawn.trace, **drawn.options)
        manifest = packed(scene).manifest
        assert [(part["name"], part["sites"]) for part in manifest["parts"]] == [
            ("gates of 48 channels", [0, 1]),
            ("gates of 6 × 8 positions", [2]),
            ("gates of 3 × 4 positions", [3]),
        ]
        grids = {grid["sequence"]: grid for grid in manifest["image"]["grids"]}
        found = [grids.get(site["key_sequence"]) for site in manifest["sites"]]
        assert found[:2] == [None, None]
        assert [(grid["rows"], grid["columns"]) for grid in found[2:]] == [(6, 8), (3, 4)]
        assert (manifest["image"]["rows"], manifest["image"]["columns"]) == (6, 8)
        channels = manifest["sequences"][manifest["sites"][0]["key_sequence"]]["tokens"]
        assert channels[47] == "channel 47"

    def test_local_attention_knows_its_grid(self):
        weights = torch.full((1, 1, 12, 12), 1 / 12)
        recipe = Given(weights, grid=(3, 4))
        said = packed(Scene.of([recipe], image=torch.rand(30, 40, 3))).manifest["image"]
        assert (said["rows"], said["columns"], said["first"]) == (3, 4, 0)

    def test_channels_have_no_place_in_an_image(self):
        drawn = gated()
        with pytest.raises(RegardError, match="gates of channels alone"):
            Scene.of(drawn.trace[:1], image=torch.rand(20, 20, 3))


def _opened(source):
    """The pixels, by another reader of PNG."""
    import base64
    import io

    from PIL import Image

    found = Image.open(io.BytesIO(base64.b64decode(source.split(",")[1])))
    return torch.tensor(list(found.convert("RGB").tobytes())).view(found.height, -1, 3) / 255


def test_a_manifest_is_plain_json():
    found = packed(Scene.of(Trace([record(dot())])))
    json.dumps(found.manifest, allow_nan=False)
