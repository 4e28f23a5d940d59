#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Completions of the command for bash, zsh and fish, made of its texts of help.

    completion.py REPOSITORY DIRECTORY       writes strait.bash, strait.zsh and strait.fish
"""
import pathlib
import re
import sys

# What an option's value is, by the name that the help gives it.
FILES = {"PATH", "FILE"}


def texts(source):
    """The texts of help.rs, by the name of their constant."""
    found = re.findall(r'pub const ([A-Z0-9_]+): &str = "\\\n(.*?)\n?";', source, re.S)
    return {name: text.replace(r"\"", '"').replace("\\\\", "\\") for name, text in found}


def commands(main):
    """Names and descriptions in the list of commands."""
    part = main.partition("Commands:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^  ([a-z][a-z0-9-]*) {2,}(\S.*)$", part, re.M)
    if not found:
        sys.exit("completion.py: the help lists no commands")
    return found


def options(text):
    """(option, name of its value, description) of each; the usage may name some that have no line."""
    lines = re.findall(r"^  (?:-[a-z](?: [A-Z]+)?, )?(--[a-z-]+)(?: ([A-Z][A-Z,]*))?(?: {2,}(\S.*))?$", text, re.M)
    listed = {option for option, _, _ in lines}
    usage = text.partition("\n\nUsage:")[2].partition("\n\n")[0]
    more = re.findall(r"(--[a-z-]+)(?: ([A-Z]+))?", usage)
    found = lines + [(option, value, "") for option, value in more if option not in listed]
    return [*found, ("--help", "", "prints the options of this command")]


def shorts(text):
    """The short forms of options, by the long ones."""
    return {long: short for short, long in re.findall(r"^  (-[a-z])(?: [A-Z]+)?, (--[a-z-]+)", text, re.M)}


def tests(manual):
    """The names that --tests takes: those of the manual's table."""
    rows = manual.partition("\n| test | |\n")[2].partition("\n\n")[0]
    names = [name for row in rows.splitlines() for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])]
    if not names:
        sys.exit("completion.py: the manual has no table of tests")
    return [*names, "all"]


def model(source, manual):
    found = texts(source)
    names = commands(found["MAIN"])
    table = {}
    for name, description in names:
        text = found.get(name.upper().replace("-", "_"))
        if text is None:
            sys.exit(f"completion.py: there is no text for {name}")
        # What stands behind the options: files, or a program and its arguments.
        behind = re.search(r"^Usage:.* (PICTURE|PROGRAM)\b", text, re.M)
        opts = options(text)
        names = tests(manual) if any(option == "--tests" for option, _, _ in opts) else []
        table[name] = (description, opts, names, behind[1] if behind else "", shorts(text))
    return table


def bash(table):
    cases = []
    for name, (_, opts, names, _, _) in table.items():
        words = " ".join(option for option, _, _ in opts)
        cases.append(f'        {name}) options="{words}" tests="{" ".join(names)}" ;;')
    files = "|".join(sorted({o for _, opts, _, _, _ in table.values() for o, value, _ in opts if value in FILES}))
    other = "|".join(sorted({o for _, opts, _, _, _ in table.values() for o, value, _ in opts if value and value not in FILES} - {"--tests"} |
                            {row[4][o] for row in table.values() for o, value, _ in row[1] if value and o in row[4]}))
    listed = "\n".join(cases)
    return f"""# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# bash completion for strait(1), made of its help.
_strait()
{{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} options="" tests="" head=""
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "{" ".join(table)} help --help --version" -- "$cur")
        return
    fi
    case ${{COMP_WORDS[1]}} in
{listed}
        help) mapfile -t COMPREPLY < <(compgen -W "{" ".join(table)}" -- "$cur"); return ;;
        *) return ;;
    esac
    case $prev in
        {files})
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
        --tests)
            [[ $cur != *,* ]] || head=${{cur%,*}},
            mapfile -t COMPREPLY < <(compgen -P "$head" -W "$tests" -- "${{cur##*,}}"); return ;;
        {other})
            return ;;
    esac
    case $cur:${{COMP_WORDS[1]}} in
        -*) ;;
        {"|".join("*:" + name for name, row in table.items() if row[3] == "PICTURE")})
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
        {"|".join("*:" + name for name, row in table.items() if row[3] == "PROGRAM")})
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -c -- "$cur"; compgen -f -- "$cur"); return ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
}}
complete -F _strait strait
"""


def quoted(text):
    return text.replace("'", "'\\''")


def zsh(table):
    cases = []
    for name, (_, opts, names, behind, short) in table.items():
        args = []
        for option, value, description in opts:
            told = quoted(re.sub(r"([\[\]:])", r"\\\1", description))
            action = "" if not value else f":{value.lower()}:_files" if value in FILES else f":{value.lower()}: "
            if option == "--tests":
                action = f":list:_values -s , test {' '.join(names)}"
            if option in short:
                args.append(f"            '({short[option]} {option})'{{{short[option]},{option}}}'[{told}]{action}'")
            else:
                args.append(f"            '{option}[{told}]{action}'")
        if behind == "PICTURE":
            args.append("            '*:file:_files'")
        elif behind:
            args.append("            '(-)1:program:_command_names -e'")
            args.append("            '*::argument:_normal'")
        cases.append(f"    {name})\n        _arguments \\\n" + " \\\n".join(args) + "\n        ;;")
    names = "\n".join(f"        '{name}:{quoted(description)}'" for name, (description, _, _, _, _) in table.items())
    listed = "\n".join(cases)
    return f"""#compdef strait
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# zsh completion for strait(1), made of its help.
local -a commands
commands=(
{names}
        'help:the options of a command'
)
if (( CURRENT == 2 )); then
    _describe command commands
    _arguments '--help[the commands]' '--version[version and commit]'
    return
fi
local command=$words[2]
shift words
(( CURRENT-- ))
case $command in
{listed}
    help) _describe command commands ;;
esac
"""


def fish(table):
    lines = ["# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only", "# fish completion for strait(1), made of its help.",
             "complete -c strait -f",
             "complete -c strait -n __fish_use_subcommand -l help -d 'the commands'",
             "complete -c strait -n __fish_use_subcommand -l version -d 'version and commit'",
             "complete -c strait -n __fish_use_subcommand -a help -d 'the options of a command'",
             f"complete -c strait -n '__fish_seen_subcommand_from help' -a '{' '.join(table)}'"]
    for name, (description, opts, names, behind, short) in table.items():
        lines.append(f"complete -c strait -n __fish_use_subcommand -a {name} -d '{fished(description)}'")
        here = f"complete -c strait -n '__fish_seen_subcommand_from {name}'"
        for option, value, told in opts:
            flags = "" if not value else " -r -F" if value in FILES else " -x"
            if option == "--tests":
                flags += f" -a '{' '.join(names)}'"
            one = f" -s {short[option][1:]}" if option in short else ""
            lines.append(f"{here}{one} -l {option[2:]}{flags}" + (f" -d '{fished(told)}'" if told else ""))
        if behind == "PICTURE":
            lines.append(f"{here} -F")
        elif behind:
            lines.append(f"{here} -xa '(__fish_complete_subcommand)'")
    return "\n".join(lines) + "\n"


def fished(text):
    return text.replace("\\", "\\\\").replace("'", "\\'")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1])
    table = model((root / "provider/command/src/help.rs").read_text(), (root / "docs/strait.md").read_text())
    to = pathlib.Path(sys.argv[2])
    for name, made in (("strait.bash", bash), ("strait.zsh", zsh), ("strait.fish", fish)):
        (to / name).write_text(made(table))


if __name__ == "__main__":
    main()
