"""`cairn completion SHELL`: prints a script that completes subcommands, actions and flags, made from the parsers.

Invariants: the script does not run `cairn` while a person types. Of a subcommand that is not installed, it completes
the name only. If no word matches, the shell completes file names.
"""

import argparse
from typing import Final

from logstore.commands.table import COMMANDS, load

SHELLS: Final = ("bash", "zsh", "fish")
Words = dict[str, list[str]]
"""The words that may follow, by path: "" for `cairn` itself, "/topics/create" for `cairn topics create`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn completion`."""
    parser.add_argument(
        "shell",
        choices=SHELLS,
        metavar="SHELL",
        help=f'{", ".join(SHELLS)}; for bash, put eval "$(cairn completion bash)" into ~/.bashrc',
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    words = all_words()
    match arguments.shell:
        case "bash":
            print(_bash(words))
        case "zsh":
            print(_zsh(words))
        case _:
            print(_fish(words))
    return 0


def all_words() -> Words:
    """What may follow each command and action, flags behind names."""
    words: Words = {"": [*COMMANDS, "--help", "--version"]}
    for name in COMMANDS:
        parser = argparse.ArgumentParser(prog=f"cairn {name}")
        try:
            load(name).add_arguments(parser)
        except SystemExit:  # an extra is not installed
            words[f"/{name}"] = ["--help"]
            continue
        _collect(parser, f"/{name}", words)
    return words


def _collect(parser: argparse.ArgumentParser, path: str, words: Words) -> None:
    names: list[str] = []
    flags: list[str] = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to ask what it knows
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            names += action.choices
            for name, inner in action.choices.items():
                _collect(inner, f"{path}/{name}", words)
        elif action.option_strings:
            flags += [flag for flag in action.option_strings if flag.startswith("--")]
        elif action.choices:
            names += map(str, action.choices)
    words[path] = [*names, *flags]


def _cases(words: Words, indent: str) -> str:
    return "\n".join(f"{indent}'{path}') words='{' '.join(found)}' ;;" for path, found in words.items())


def _paths(words: Words) -> str:
    return " | ".join(f"'{path}'" for path in words if path)


def _bash(words: Words) -> str:
    return f"""# Completes `cairn` in bash: eval "$(cairn completion bash)"
_cairn() {{
    local path='' words='' at
    for ((at = 1; at < COMP_CWORD; at++)); do
        case "$path/${{COMP_WORDS[at]}}" in
            {_paths(words)}) path="$path/${{COMP_WORDS[at]}}" ;;
        esac
    done
    case "$path" in
{_cases(words, "        ")}
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _cairn cairn"""


def _zsh(words: Words) -> str:
    # `path` and `words` are special in zsh: the search path, and the words of the line.
    cases = _cases(words, "        ").replace(" words='", " found='")
    return f"""#compdef cairn
# Completes `cairn` in zsh: eval "$(cairn completion zsh)" after compinit, or as a file _cairn in $fpath.
_cairn() {{
    local place='' found='' at
    for ((at = 2; at < CURRENT; at++)); do
        case "$place/${{words[at]}}" in
            {_paths(words)}) place="$place/${{words[at]}}" ;;
        esac
    done
    case "$place" in
{cases}
    esac
    compadd -- ${{=found}} || _files
}}
if [ "${{funcstack[1]}}" = _cairn ]; then _cairn "$@"; else compdef _cairn cairn; fi"""


def _fish(words: Words) -> str:
    lines = []
    for path, found in words.items():
        condition = f"-n '__cairn_at {path}/'"
        names = " ".join(word for word in found if not word.startswith("--"))
        flags = [f"complete -c cairn {condition} -l {word[2:]}" for word in found if word.startswith("--")]
        lines += [f"complete -c cairn {condition} -a '{names}'"] if names else []
        lines += flags
    completions = "\n".join(lines)
    return f"""# Completes `cairn` in fish: cairn completion fish > ~/.config/fish/completions/cairn.fish
function __cairn_at
    set -l place ''
    for word in (commandline -opc)[2..]
        if contains -- "$place/$word" {" ".join(f"'{path}'" for path in words if path)}
            set place "$place/$word"
        end
    end
    test "$place/" = $argv[1]
end
{completions}"""
