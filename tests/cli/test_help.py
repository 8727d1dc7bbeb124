"""The help of every command."""

import sys

import pytest

from regard.cli import main

COMMANDS = ["look", "serve", "translate", "train", "align", "score", "check-model"]


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_flags_have_no_type(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["regard", *command, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert "--help" in printed and "bool" not in printed
    assert command or all(name in printed for name in COMMANDS)
