"""`regard export` on the files of a training."""

import sys

import pytest
from translate_command import checkpoint

from regard.cli import main
from regard.translate.checkpoint import save_checkpoint


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(*arguments, model="transformer"):
        save_checkpoint(f"{model}.safetensors", checkpoint(model))
        command = ["regard", "export", f"{model}.safetensors", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return call


def test_the_command_says_what_loads_the_folder(run, tmp_path):
    code, said, complained = run("--format", "ctranslate2", "--out", "french")
    assert (code, complained) == (0, "")
    assert said.startswith('french: ctranslate2.Translator("french")')
    assert (tmp_path / "french" / "model.bin").exists()


@pytest.mark.parametrize(
    ("arguments", "model", "complaint"),
    [
        (["--format", "onnx"], "transformer", "--format onnx, expected one of ctranslate2, marian"),
        (["--format", "marian"], "transformer", "format ctranslate2 has both"),
        (["--format", "ctranslate2"], "bahdanau", "have no recurrent networks"),
    ],
)
def test_a_refusal_is_one_line(arguments, model, complaint, run, tmp_path):
    code, _, complained = run(*arguments, "--out", "french", model=model)
    assert code == 1 and complaint in complained
    assert "Traceback" not in complained and complained.count("\n") == 1
    assert not (tmp_path / "french").exists()
