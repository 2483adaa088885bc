"""``hotstart completion``: the script that teaches a shell to complete verbs, options and names."""

from __future__ import annotations

import click

from hotstart.snapshot_agent.cli import output
from hotstart.snapshot_agent.cli.settings import Settings
from hotstart.snapshot_agent.cli.verbs import verb


@verb(
    short_help="Print a completion script for bash, zsh or fish.",
    needs_root=False,
    examples=[
        ("bash, for this shell", 'eval "$(hotstart completion bash)"'),
        ("bash, for good", "hotstart completion bash > /etc/bash_completion.d/hotstart"),
        ("zsh, for good", 'hotstart completion zsh > "${fpath[1]}/_hotstart"'),
        ("fish, for good", "hotstart completion fish > ~/.config/fish/completions/hotstart.fish"),
    ],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(settings: Settings, shell: str) -> None:
    """Print the script that makes SHELL complete verbs, options, and the names of sandboxes and snapshots."""
    from click.shell_completion import get_completion_class

    from hotstart.snapshot_agent.cli.main import COMPLETE_ENV, PROGRAM
    from hotstart.snapshot_agent.cli.root import program

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(program, {}, PROGRAM, COMPLETE_ENV).source()
    if settings.json:
        output.write_json({"shell": shell, "script": script})
    else:
        output.write(script)


command = completion
