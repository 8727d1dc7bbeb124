"""Training pairs that are read in every epoch: the same pairs, in blocks, in little memory."""

import gzip
import tracemalloc
from dataclasses import replace
from itertools import chain

import pytest
from toy_training import toy, write_pairs

from regard.errors import RegardError
from regard.translate.config import Config, DataConfig
from regard.translate.training import Watcher, read_log, train
from regard.translate.training.corpus import read_data


def write_shards(folder, shards, count):
    """Files of pairs; returns the pattern that names them."""
    folder.mkdir(exist_ok=True)
    for shard in range(shards):
        write_pairs(folder / f"part-{shard:03}.tsv", count, seed=shard)
    return str(folder / "part-*.tsv")


def texts(pairs):
    return [(pair.source, pair.target) for pair in pairs]


def test_an_epoch_has_every_pair_once(tmp_path):
    train_files = write_shards(tmp_path, shards=5, count=41)
    split = {"valid_pairs": 10, "test_pairs": 20, "repeated": True, "longest": 5}
    held = read_data(DataConfig(train=(train_files,), **split))
    streamed = read_data(DataConfig(train=(train_files,), buffer=50, **split))
    assert texts(streamed.valid) == texts(held.valid) and texts(streamed.test) == texts(held.test)
    assert streamed.report == held.report and held.report.dropped["too long"] > 0
    assert streamed.count == held.count == len(held.train)
    assert set(texts(streamed.train)) <= set(texts(held.train))  # a sample

    epochs = [[texts(block) for block in streamed.stream.blocks(0, epoch)] for epoch in (0, 1)]
    for blocks in epochs:
        assert len(blocks) == streamed.stream.n_blocks > 2
        assert all(len(blocks[0]) - 1 <= len(block) <= 50 for block in blocks)
        assert sorted(chain.from_iterable(blocks)) == sorted(texts(held.train))
    assert epochs[0] != epochs[1]
    assert [texts(block) for block in streamed.stream.blocks(0, 1, 2)] == epochs[1][2:]


def test_duplicates_are_left_out_within_a_file(tmp_path):
    for shard in ("a", "b"):
        (tmp_path / f"{shard}.tsv").write_text("one\tun\n" * 3 + "two\tdeux\n" + "one\tun\n")
    valid = write_pairs(tmp_path / "valid", 5, seed=0).rename(tmp_path / "valid.txt")
    data = DataConfig(train=(str(tmp_path / "*.tsv"),), valid=(str(valid),), buffer=10)
    found = read_data(data)
    assert found.report.dropped["duplicate"] == 6 and found.count == 4
    assert len(next(found.stream.blocks(0, 0))) == 4
    forgetful = read_data(replace(data, buffer=2))  # it forgets one and two before the last one
    assert forgetful.count == 6


def peak(config):
    """The most bytes held while all pairs of two epochs are read."""
    tracemalloc.start()
    found = read_data(config)
    assert found.count > 200
    for epoch in (0, 1):
        for _ in found.stream.blocks(0, epoch):
            pass
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def test_memory_does_not_grow_with_the_number_of_pairs(tmp_path):
    few, many = (write_shards(tmp_path / str(count), 4, count) for count in (150, 1500))
    config = DataConfig(valid_pairs=5, buffer=100)
    small = peak(replace(config, train=(few,)))
    large = peak(replace(config, train=(many,)))
    assert large < 1.25 * small, (small, large)
    whole = replace(config, train=(many,), buffer=100_000)
    assert peak(whole) > 10 * small  # the measure sees pairs that are held


class Shares(Watcher):
    def __init__(self):
        self.seen = []

    def stepped(self, progress):
        self.seen.append(progress)


def test_a_streamed_training_learns_and_tells_its_share(tmp_path):
    pattern = write_shards(tmp_path / "shards", shards=4, count=50)
    shares = Shares()
    config = toy(tmp_path / "data", f"data.train={pattern}", "data.buffer=60")
    trained = train(config, tmp_path / "run", watcher=shares)
    assert trained.ending == "finished"
    assert [now.step for now in shares.seen] == list(range(1, trained.step + 1))
    assert all(now.steps is None for now in shares.seen)
    done = [now.share for now in shares.seen]
    assert done == sorted(done) and 0 < done[0] < 0.1 and done[-1] == 1
    assert shares.seen[-1].seconds_left == 0
    rows = [row for row in read_log(trained.folder.log) if row["kind"] == "valid"]
    assert len(rows) == 4 and float(rows[-1]["loss"]) < float(rows[0]["loss"])


def test_a_buffer_for_all_is_the_training_in_memory(tmp_path):
    losses = {}
    for buffer in (0, 1000):
        config = toy(tmp_path / "data", f"data.buffer={buffer}", "training.epochs=2")
        trained = train(config, tmp_path / str(buffer))
        losses[buffer] = [(row["loss"], row["rate"]) for row in read_log(trained.folder.log)]
    assert losses[0] == losses[1000]


def test_two_gzipped_files_for_each_shard(tmp_path):
    for shard in range(3):
        for side in ("en", "fr"):
            with gzip.open(tmp_path / f"{shard}.{side}.gz", "wt") as file:
                file.write("".join(f"{side} {shard} {line}\n" for line in range(10)))
    pattern = tuple(str(tmp_path / f"*.{side}.gz") for side in ("en", "fr"))
    pairs = read_data(DataConfig(train=pattern, valid_pairs=2, buffer=10))
    found = texts([*chain.from_iterable(pairs.stream.blocks(0, 0)), *pairs.valid])
    assert sorted(found) == sorted(
        (f"en {shard} {line}", f"fr {shard} {line}") for shard in range(3) for line in range(10)
    )


def test_files_that_change_under_a_training_are_an_error(tmp_path):
    pattern = write_shards(tmp_path, shards=2, count=50)
    stream = read_data(DataConfig(train=(pattern,), valid_pairs=5, buffer=30)).stream
    write_pairs(tmp_path / "part-001.tsv", 5, seed=1)
    with pytest.raises(RegardError, match=r"have changed: there were \d+ pairs .*, now there are"):
        list(stream.blocks(0, 0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data.first=10"], r"data\.first is 10, but data\.buffer 20 reads all pairs"),
        (["training.schedule=linear"], "is 'linear', which ends with the last step, but how many"),
        (["data.buffer=-1"], r"data\.buffer must be at least 0, found -1"),
    ],
)
def test_settings_that_need_all_pairs_are_refused(settings, message):
    with pytest.raises(RegardError, match=message):
        Config.from_table({"data": {"buffer": 20}}, settings)


def test_more_to_split_off_than_there_are_is_an_error(tmp_path):
    pattern = write_shards(tmp_path, shards=1, count=20)
    message = "are 500 together, but data.train has 20 distinct sources"
    with pytest.raises(RegardError, match=message):
        read_data(DataConfig(train=(pattern,), valid_pairs=500, buffer=10))
