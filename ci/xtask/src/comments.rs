//! Comments of Rust source text, line by line: the parser drops them.

/// The part of one line that is a comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comment {
    /// The line, from 1.
    pub line: usize,
    /// Text without the marker (`//`, `///`, `//!`).
    pub text: String,
    /// `///`, `//!` and their block forms.
    pub doc: bool,
    /// The line holds nothing else.
    pub whole_line: bool,
    /// The last column of the line, in characters.
    pub columns: usize,
}

/// All comments of a text, and the text with its comments blanked: same lines, same columns.
pub fn split(text: &str) -> (Vec<Comment>, String) {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut spans = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let end = token_end(&chars, at);
        if is_comment(&chars, at) {
            spans.push(at..end);
            code.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
        } else {
            code.extend(&chars[at..end]);
        }
        at = end;
    }
    (lines(&chars, &spans), code)
}

fn is_comment(chars: &[char], at: usize) -> bool {
    chars[at] == '/' && matches!(chars.get(at + 1), Some('/' | '*'))
}

/// The end of the comment, literal, identifier or single character that begins at `at`.
fn token_end(chars: &[char], at: usize) -> usize {
    match chars[at] {
        '/' if chars.get(at + 1) == Some(&'/') => find(chars, at, '\n'),
        '/' if chars.get(at + 1) == Some(&'*') => block_end(chars, at),
        '"' => string_end(chars, at + 1),
        '\'' => character_end(chars, at),
        c if c.is_alphanumeric() || c == '_' => {
            let end = at + chars[at..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').count();
            let prefix: String = chars[at..end].iter().collect();
            match chars.get(end) {
                Some('"' | '#') if matches!(&*prefix, "r" | "br" | "cr") => raw_end(chars, end),
                Some('"') if matches!(&*prefix, "b" | "c") => string_end(chars, end + 1),
                Some('\'') if prefix == "b" => character_end(chars, end),
                _ => end,
            }
        }
        _ => at + 1,
    }
}

fn find(chars: &[char], at: usize, what: char) -> usize {
    chars[at..].iter().position(|&c| c == what).map_or(chars.len(), |n| at + n)
}

fn block_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 1),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 1),
            _ => {}
        }
        i += 1;
        if depth == 0 {
            break;
        }
    }
    i
}

fn string_end(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// `at` is the first character behind the `r` of a raw string, or of a raw identifier.
fn raw_end(chars: &[char], at: usize) -> usize {
    let hashes = chars[at..].iter().take_while(|&&c| c == '#').count();
    if chars.get(at + hashes) != Some(&'"') {
        return at + hashes;
    }
    let mut i = at + hashes + 1;
    while i < chars.len() {
        i = find(chars, i, '"') + 1;
        if i <= chars.len() && chars[i..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes {
            return i + hashes;
        }
    }
    chars.len()
}

/// `at` is at the quote of a character literal or of a lifetime.
fn character_end(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), _) => (find(chars, (at + 3).min(chars.len()), '\'') + 1).min(chars.len()),
        (Some(_), Some('\'')) => at + 3,
        _ => at + 1,
    }
}

fn lines(chars: &[char], spans: &[std::ops::Range<usize>]) -> Vec<Comment> {
    let mut found = Vec::new();
    let (mut line, mut start, mut counted) = (1, 0, 0);
    for span in spans {
        let whole: String = chars[span.clone()].iter().collect();
        let marker = marker(&whole);
        let mut at = span.start;
        for (i, part) in whole.split('\n').enumerate() {
            while let Some(n) = chars[counted..at].iter().position(|&c| c == '\n') {
                counted += n + 1;
                (line, start) = (line + 1, counted);
            }
            let end = at + part.chars().count();
            let text = if i == 0 { &part[marker.len()..] } else { part };
            found.push(Comment {
                line,
                text: text.trim_end_matches("*/").trim().to_owned(),
                doc: marker.len() == 3,
                whole_line: chars[start..at].iter().all(|c| c.is_whitespace()),
                columns: end - start,
            });
            at = end + 1;
        }
    }
    found
}

fn marker(comment: &str) -> &str {
    // Four slashes, three stars and an empty `/**/` make no doc comment.
    let doc = ["///", "//!", "/**", "/*!"].into_iter().find(|m| comment.starts_with(m));
    match doc {
        Some(m) if !comment.starts_with("////") && !comment.starts_with("/***") && comment != "/**/" => m,
        _ => &comment[..2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(code: &str) -> Vec<String> {
        split(code).0.into_iter().map(|c| c.text).collect()
    }

    #[test]
    fn literals_are_no_comments() {
        let code = "let a = \"// no\"; // yes\nlet b = r#\"\" // no\"#; let c = '\"'; // also\nfn f<'a>() {} // last";
        assert_eq!(texts(code), ["yes", "also", "last"]);
        assert_eq!(texts("let c = b'\\''; // one\nlet r#type = '/'; // two"), ["one", "two"]);
    }

    #[test]
    fn block_comments_nest_and_give_a_line_each() {
        let found = split("/* a /* b */\n c */ x // d").0;
        assert_eq!(found.iter().map(|c| c.line).collect::<Vec<_>>(), [1, 2, 2]);
        assert_eq!(found[2].text, "d");
    }

    #[test]
    fn doc_comments_have_their_lines_and_columns() {
        let found = split("//! a\n\n/// bc\nfn f() {} //// d\n").0;
        let rows: Vec<_> = found.iter().map(|c| (c.line, c.doc, c.columns, c.whole_line)).collect();
        assert_eq!(rows, [(1, true, 5, true), (3, true, 6, true), (4, false, 16, false)]);
    }

    #[test]
    fn blanked_text_keeps_lines_and_columns() {
        assert_eq!(split("a // b\n/* c\n*/ d").1, "a     \n    \n   d");
    }
}
