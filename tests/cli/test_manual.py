"""The manual page: complete, and nothing that man complains of."""

from __future__ import annotations

import re
import shutil
import subprocess

import click
import pytest

from kdissect.cli.commands import main as program
from kdissect.cli.main import main


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["man"]) == 0
    return capsys.readouterr().out


def test_every_command_and_option_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    page = printed(capsys).replace("\\-", "-")
    for name, command in program.commands.items():
        assert name == "CAPTURE..." or f".SS kdissect {name}" in page
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.opts[-1] in page, (name, parameter.opts)
    assert page.startswith(".TH KDISSECT 1 ")
    assert ".SH EXIT STATUS" in page


def test_groff_has_nothing_to_say(capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed (apt install groff-base)")
    page = printed(capsys)
    made = subprocess.run(["groff", "-man", "-Tascii", "-ww"], input=page, capture_output=True, text=True, check=True)
    assert made.stderr == ""
    text = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", made.stdout)
    assert "kdissect - Turn captures of Kafka traffic into tables" in text
    assert "--where EXPRESSION" in text
