#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Print the man page that a manual in docs/ is the source of.

    ci/check/md2man.py docs/provider.md 0.1.0 >fi_strait.7

A manual has a comment `<!-- man: TITLE SECTION DATE "VOLUME" -->`.  Of Markdown it may use: headings of levels 2
and 3, paragraphs, a paragraph that begins with a **term.**, lists of one level, code that is indented by four spaces,
tables, `code`, **bold**, *emphasis* and links.  Anything else is an error.
"""
import re
import sys
import textwrap

PAGES = {"provider.md": "fi_strait(7)", "ucx.md": "uct_strait(7)", "strait.md": "strait(1)",
         "p2pmem.md": "strait_p2pmem(7)", "storage.md": "strait_storage(7)", "rpipe.md": "strait_rpipe(7)",
         "streams.md": "strait_stream(7)", "xpu-host.md": "strait_xpu(7)", "mpi.md": "strait_mpi(7)"}
UNUSUAL = {"µ": r"\(mc", "–": r"\(en", "×": r"\(mu", "≥": r"\(>=", "≤": r"\(<=", "®": r"\(rg"}


class Wrong(Exception):
    """Markdown that this program does not know, or a manual without its comment."""


def escaped(text):
    """Text as roff prints it."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\(ga")
    text = text.replace("^", r"\(ha").replace("~", r"\(ti")
    for char, name in UNUSUAL.items():
        text = text.replace(char, name)
    left = re.search(r"[^\x00-\x7f]", text)
    if left:
        raise Wrong(f"no name for the character {left[0]!r}")
    return text


def link(match):
    """A page is named by its page, another document by its file."""
    text, target = match[1], match[2]
    file = target.split("#")[0]
    if file in PAGES:
        return PAGES[file]
    if not file or file.startswith("http"):
        return text
    return text if text != file else f"docs/{file}"


def inline(text):
    """A paragraph's text, on one line."""
    text = re.sub(r"\[([^\]]+)\]\(([^)]+)\)", link, " ".join(text.split()))
    out = []
    for part in re.split(r"(`[^`]+`|\*\*[^*]+\*\*|(?<![\w*])\*[^*\s][^*]*\*(?!\w))", text):
        if part.startswith("`"):
            out.append(r"\fB" + escaped(part[1:-1]) + r"\fR")
        elif part.startswith("**"):
            out.append(r"\fB" + escaped(part[2:-2]) + r"\fR")
        elif part.startswith("*") and part.endswith("*") and len(part) > 2:
            out.append(r"\fI" + escaped(part[1:-1]) + r"\fR")
        else:
            part = escaped(part)
            # Names of pages with their section.
            out.append(re.sub(r"\b([a-z_]+[a-z0-9_]*)\(([1-8])\)", r"\\fB\1\\fR(\2)", part))
    return "".join(out)


def running(text):
    """Text as roff has it: a sentence begins a line, and no line begins with a control character."""
    lines = []
    for sentence in re.sub(r"(?<=[a-z0-9)R][.:;?!]) (?=[A-Z\\])", "\n", inline(text)).split("\n"):
        lines += textwrap.wrap(sentence, 80, break_long_words=False, break_on_hyphens=False)
    return "\n".join(r"\&" + line if line.startswith(".") else line for line in lines)


def table(rows):
    """Rows of two columns, or with a default, are terms with their text; others are tables."""
    head, body = rows[0], rows[2:]
    if len(head) == 2 or (len(head) == 3 and head[1] == "default"):
        out = []
        for row in body:
            term = inline(row[0]) + (f" (default: {inline(row[1])})" if len(head) == 3 else "")
            out.append(f".TP\n{term}\n" + (running(row[-1]) or r"\ "))
        return "\n".join(out)
    # Long cells are blocks of text, which share the rest of the line.
    wide = [max(len(row[column]) for row in body) > 24 for column in range(len(head))]
    cells = ["\t".join(f"T{{\n{inline(cell)}\nT}}" if long and row is not head else inline(cell) for cell, long in zip(row, wide)) for row in [head] + body]
    form = [" ".join("lbx" if long else "lb" for long in wide), " ".join("lx" if long else "l" for long in wide) + "."]
    return "\n".join([".TS"] + form + cells + [".TE"])


def split(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.count("|") > 1 else []


def blocks(lines):
    """Pairs of a kind and the lines of it."""
    found, kind = [], None
    for line in lines:
        if not line.strip():
            kind = "code" if kind == "code" else None
            if kind:
                found[-1][1].append("")
            continue
        if line.startswith("|"):
            now = "table"
        elif line.startswith("#"):
            now = "heading"
        elif line.startswith("<!--"):
            now = "comment"
        elif line.startswith("- "):
            now = "item"
        elif line.startswith("    ") and kind != "item":
            now = "code"
        elif re.match(r"(\d+\. |> |```|\[\^|!\[)", line):
            raise Wrong(f"not for a man page: {line}")
        else:
            now = kind if kind in ("item", "text") else "text"
        if now == kind and not (now == "heading" or line.startswith("- ")):
            found[-1][1].append(line)
        else:
            found.append((now, [line]))
        kind = now
    return found


def page(text, version):
    comment = re.search(r'<!-- man: (\S+) (\d) (\S+) "([^"]+)" -->', text)
    if not comment:
        raise Wrong("no comment that names the man page")
    title, section, date, volume = comment.groups()
    out = ['\'\\" t', '.\\" Made by ci/check/docs from the manual in docs/; do not edit.',
           f'.TH {title} {section} {date} "Strait {version}" "{volume}"', ".nh", ".ad l"]
    for kind, lines in blocks(text.split("\n")):
        body = "\n".join(lines)
        begins = out[-1].startswith((".SH", ".SS"))
        if kind in ("code", "text") and not begins:
            out.append(".PP")
        if kind == "heading":
            level, name = body.split(" ", 1)
            if level == "##":
                out.append(".SH " + escaped(name.upper()))
            elif level == "###":
                out.append(".SS " + escaped(name))
            elif level != "#":
                raise Wrong(f"a heading of level {len(level)}")
        elif kind == "code":
            code = "\n".join(escaped(line[4:]) for line in lines).rstrip()
            out.append(".RS 4\n.nf\n" + code + "\n.fi\n.RE")
        elif kind == "item":
            out.append(".IP \\(bu 2\n" + running(body[2:]))
        elif kind == "table":
            out.append(table([split(line) for line in lines]))
        elif kind == "text":
            term = re.match(r"\*\*([^*]+)\.\*\* (.*)", body, re.S)
            if term:
                if not begins:
                    out.pop()
                out.append(".TP\n\\fB" + escaped(term[1]) + "\\fR\n" + running(term[2]))
            else:
                out.append(running(body))
    return "\n".join(out) + "\n"


def main():
    file, version = sys.argv[1:]
    try:
        with open(file, encoding="utf-8") as source:
            print(page(source.read(), version), end="")
    except Wrong as wrong:
        sys.exit(f"{file}: {wrong}")


if __name__ == "__main__":
    main()
