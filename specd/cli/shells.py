"""Completion scripts, each for its shell, out of the same tree.

All three find out to which place of the tree the words before the cursor have led (`at`), and then complete the value
of the option just before, an option, or what may stand there.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from specd.cli.tree import Option, Place, Value
from specd.config.paths import known_keys

_BASH: Final = """\
# Completion of specd for bash, by `specd completion bash`.
_specd_words() { mapfile -t COMPREPLY < <(compgen -W "$*" -- "$cur"); }
_specd_path() { compopt -o filenames; mapfile -t COMPREPLY < <(compgen -W "$*" -- "$cur"; compgen -f -- "$cur"); }
_specd_key() { compopt -o nospace; mapfile -t COMPREPLY < <(compgen -S = -W '@KEYS@' -- "$cur"); }
_specd() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} at=specd i
    COMPREPLY=()
    # bash takes --option=value for three words; of KEY=VALUE the value is not known
    if [[ $cur == = || $prev == = ]]; then
        [[ $cur == = ]] && cur= || prev=${COMP_WORDS[COMP_CWORD - 2]}
        [[ $prev == -* ]] || return
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$at ${COMP_WORDS[i]}" in
        @PLACES@) at="$at ${COMP_WORDS[i]}" ;;
        esac
    done
    case "$at $prev" in
@VALUES@
    esac
    if [[ $cur == -* ]]; then
        case "$at" in
@OPTIONS@
        esac
    else
        case "$at" in
@HERE@
        esac
    fi
}
complete -F _specd specd
"""

_ZSH: Final = """\
#compdef specd
# Completion of specd for zsh, by `specd completion zsh`: a file _specd in a directory of $fpath.
_specd_words() { compadd -- "$@"; }
_specd_path() { compadd -- "$@"; _files; }
_specd_key() { compadd -S = -- @KEYS@; }
_specd_told() { local -a told=("$@"); _describe specd told; }
_specd() {
    local at=specd prev=${words[CURRENT - 1]} cur=${words[CURRENT]}
    integer i
    for ((i = 2; i < CURRENT; i++)); do
        case "$at ${words[i]}" in
        @PLACES@) at="$at ${words[i]}" ;;
        esac
    done
    case "$at $prev" in
@VALUES@
    esac
    if [[ $cur == -* ]]; then
        case "$at" in
@OPTIONS@
        esac
    else
        case "$at" in
@HERE@
        esac
    fi
}
compdef _specd specd
"""

_FISH: Final = """\
# Completion of specd for fish, by `specd completion fish`.
function __specd_at
    set -l at specd
    for word in (commandline -opc)[2..]
        switch "$at $word"
            case @PLACES@
                set at "$at $word"
        end
    end
    test "$at" = "$argv"
end
function __specd_key
    string join \\n @KEYS@
end
complete -c specd -f
"""


def bash(top: Place) -> str:
    """For bash 4.4 and later."""
    return _filled(_BASH, top, _words)


def zsh(top: Place) -> str:
    """For zsh, with the help of each option and command beside it."""
    return _filled(_ZSH, top, _told)


def fish(top: Place) -> str:
    """For fish, likewise."""
    all_places = list(_all(top))
    head = _FISH.replace("@PLACES@", " ".join(map(_fish_quoted, _paths(all_places))))
    head = head.replace("@KEYS@", " ".join(f"{key}=" for key in known_keys()))
    return head + "".join(f"{line}\n" for place in all_places for line in _fish_lines(place))


SHELLS: Final = {"bash": bash, "zsh": zsh, "fish": fish}

_Told = Callable[[Iterable[tuple[str, str]]], str]
"""Makes a call out of words and what each is for."""


def _filled(template: str, top: Place, told: _Told) -> str:
    all_places = list(_all(top))
    return (
        template.replace("@PLACES@", _either(_paths(all_places)))
        .replace("@KEYS@", " ".join(known_keys()))
        .replace("@VALUES@", _cases(4, _values(all_places)))
        .replace("@OPTIONS@", _cases(8, ((place.path, told(_option_words(place))) for place in all_places)))
        .replace("@HERE@", _cases(8, ((place.path, _here(place, told)) for place in all_places)))
    )


def _all(place: Place) -> Iterator[Place]:
    yield place
    for inner in place.below:
        yield from _all(inner)


def _paths(all_places: Sequence[Place]) -> list[str]:
    return [place.path for place in all_places[1:]]


def _either(patterns: Iterable[str]) -> str:
    return " | ".join(map(shlex.quote, patterns))


def _cases(indent: int, cases: Iterable[tuple[str, str]]) -> str:
    """Arms of a `case`; those that do the same are one."""
    arms: dict[str, list[str]] = {}
    for pattern, call in cases:
        arms.setdefault(call, []).append(pattern)
    space = " " * indent
    return "\n".join(f"{space}{_either(patterns)}) {call} ;;" for call, patterns in arms.items())


def _values(all_places: Iterable[Place]) -> Iterator[tuple[str, str]]:
    for place in all_places:
        for option in place.options:
            if option.value is not None:
                for name in option.names:
                    yield f"{place.path} {name}", f"{_call(option.value)}; return"


def _here(place: Place, told: _Told) -> str:
    if place.below:
        return told((inner.path.rpartition(" ")[2], inner.summary) for inner in place.below)
    return _call(place.arguments[0]) if place.arguments else "return"


def _call(value: Value) -> str:
    if value.kind == "any" and not value.words:
        return "return"
    name = {"any": "words", "path": "path", "key": "key"}[value.kind]
    return " ".join([f"_specd_{name}", *map(shlex.quote, value.words)])


def _option_words(place: Place) -> Iterator[tuple[str, str]]:
    return ((name, option.help) for option in place.options for name in option.names if name.startswith("--"))


def _words(told: Iterable[tuple[str, str]]) -> str:
    return " ".join(["_specd_words", *(word for word, _ in told)])


def _told(told: Iterable[tuple[str, str]]) -> str:
    """A colon in a word would end it; no word of ours has one."""
    return " ".join(["_specd_told", *(shlex.quote(f"{word}:{text}") for word, text in told)])


def _fish_lines(place: Place) -> Iterator[str]:
    at = f"complete -c specd -n {_fish_quoted(f'__specd_at {place.path}')}"
    for inner in place.below:
        name = inner.path.rpartition(" ")[2]
        yield f"{at} -a {name} -d {_fish_quoted(inner.summary)}"
    for option in place.options:
        yield " ".join([at, *_fish_option(option), "-d", _fish_quoted(option.help)])
    for value in place.arguments[:1]:
        yield " ".join([at, *_fish_value(value)])


def _fish_option(option: Option) -> Iterator[str]:
    for name in option.names:
        yield f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
    if option.value is not None:
        yield "-r" if option.value.kind == "path" else "-x"
        yield from _fish_value(option.value)


def _fish_value(value: Value) -> Iterator[str]:
    if value.kind == "path":
        yield "-F"
    words = "(__specd_key)" if value.kind == "key" else " ".join(value.words)
    if words:
        yield f"-a {_fish_quoted(words)}"


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
