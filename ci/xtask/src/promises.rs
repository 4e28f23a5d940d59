//! The tests that SECURITY.md names are there: each `file`: word, word; has to hold these words.

use crate::tree::Tree;

const FILE: &str = "SECURITY.md";
/// Fewer found words than this: the table has another form.
const LEAST: usize = 20;

/// All failures.
pub fn check(tree: &Tree) -> Vec<String> {
    let text = match tree.text(FILE) {
        Ok(text) => text,
        Err(e) => return vec![format!("{FILE}:1: promises: {e}")],
    };
    let (named, mut failures) = named(tree, &text);
    if named < LEAST {
        failures.push(format!("{FILE}:1: promises: {named} tests found: the table has another form"));
    }
    failures
}

/// How many words are named, and those that are not there.
fn named(tree: &Tree, text: &str) -> (usize, Vec<String>) {
    let (mut count, mut failures) = (0, Vec::new());
    for (line, row) in text.lines().enumerate().filter(|(_, l)| l.starts_with("| ")) {
        let line = line + 1;
        for (path, words) in pairs(row) {
            let words = words.split([',', ' ']).filter(|w| !w.is_empty());
            let Ok(text) = tree.text(path) else {
                failures.push(format!("{FILE}:{line}: promises: {path} is not there: name the test's file"));
                continue;
            };
            let has = |word: &str| text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == word);
            for word in words {
                count += 1;
                if !has(word) {
                    failures.push(format!("{FILE}:{line}: promises: {path} has no {word}: name the test"));
                }
            }
        }
    }
    (count, failures)
}

/// Each path in backticks that a colon follows, with the words behind it.
fn pairs(row: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = row.split('`').collect();
    let quoted = (1..parts.len().saturating_sub(1)).step_by(2);
    let named = quoted.filter_map(|i| Some((parts[i], parts[i + 1].strip_prefix(": ")?)));
    let ends = |c: char| !(c.is_ascii_alphanumeric() || "_, ".contains(c));
    named
        .filter(|(path, _)| is_path(path))
        .map(|(path, rest)| (path, rest.split(ends).next().unwrap_or("")))
        .collect()
}

fn is_path(text: &str) -> bool {
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "_/.-".contains(c));
    let is_source = text.rsplit_once('.').is_some_and(|(_, end)| matches!(end, "rs" | "c" | "sh"));
    is_plain && (is_source || text.starts_with("ci/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(row: &str) -> (usize, Vec<String>) {
        let tree = Tree::of(&[("a/t.rs", "fn one() {}\nfn two_more() {}"), ("ci/x", "part_a() { true; }")]);
        named(&tree, row)
    }

    #[test]
    fn tests_that_are_there_are_sound() {
        let row = "| Text | `a/t.rs`: one, two_more; `ci/x`: part_a, and `no path`: here |";
        assert_eq!(failures(row), (4, vec![format!("{FILE}:1: promises: ci/x has no and: name the test")]));
        assert_eq!(failures("| Text | `a/t.rs`: one, two_more; `ci/x`: part_a |"), (3, Vec::new()));
    }

    #[test]
    fn tests_that_are_gone_are_found() {
        assert_eq!(
            failures("| Text | `a/t.rs`: two |").1,
            [format!("{FILE}:1: promises: a/t.rs has no two: name the test")]
        );
        assert!(failures("| Text | `a/gone.rs`: one |").1[0].contains("a/gone.rs is not there"));
        assert_eq!(check(&Tree::of(&[(FILE, "| Text | none |")])).len(), 1);
    }
}
