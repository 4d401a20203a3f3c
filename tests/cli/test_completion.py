"""`hf-embinit completion`: what bash offers after a word that was begun."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from hf_embinit import __main__ as cli

TRY = """. "$0"
complete -p hf-embinit
while read -r -a COMP_WORDS; do COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  _hf_embinit; echo "${COMPREPLY[@]}"; done
"""
OFFERED = {
    "hf-embinit dif": "",
    "hf-embinit comp": "compare completion",
    "hf-embinit train class": "classify",
    "hf-embinit expand model --tok": "--tokenizer --tokens --tokens_file",
    "hf-embinit expand model --init glove_x": "glove_xavier",
    "hf-embinit doctor runs": "",  # a file name: bash's own
    "hf-embinit results train class": "",  # and so is this
    "/usr/bin/hf-embinit comp": "compare completion",
    "hf-embinit train translate --js": "",  # the recipe's, which has none
    "hf-embinit init model --init fo": "",  # not for whole tables, as `focus` is not
    "hf-embinit retokenize a b --init fo": "focus",
    "hf-embinit expand model --tokens a b c d e f g --init glove_x": "glove_xavier",
    "hf-embinit expand model --tokens a b c d e f g --dry_r": "--dry_run",
    "hf-embinit expand model --init = glove_x": "glove_xavier",  # how bash takes `--init=glove_x` apart
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_offers_commands_flags_recipes_and_initialisers(tmp_path, capsys) -> None:
    assert cli.main(["completion", "bash"]) == 0
    script = tmp_path / "completion.sh"
    script.write_text(capsys.readouterr().out)
    done = subprocess.run(
        ["bash", "-c", TRY, script],
        input="\n".join([*OFFERED, ""]),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.splitlines() == ["complete -o default -F _hf_embinit hf-embinit", *OFFERED.values()]


def test_zsh_reads_the_same_through_its_own_bashcompinit(capsys) -> None:
    scripts = []
    for shell in ("bash", "zsh"):
        assert cli.main(["completion", shell]) == 0
        scripts.append(capsys.readouterr().out)
    assert scripts[1].endswith(scripts[0]) and scripts[1].startswith("autoload -Uz compinit bashcompinit")
