//! A table of each crate's sizes, for a comparison before and after a change.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::rules::{Measure, Rule};
use crate::tree::Tree;
use crate::workspace::Crate;

/// Numbers of one crate.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Row {
    name: String,
    /// Lines with code.
    code: usize,
    /// Lines of tests that are not empty.
    tests: usize,
    /// Lines with a comment alone.
    comments: usize,
    fields: usize,
    spread: usize,
    methods: usize,
    likewise: usize,
    columns: usize,
    words: usize,
}

impl Row {
    pub fn of(tree: &Tree, one: &Crate, measures: &[Measure]) -> Self {
        let of = |rule| measures.iter().filter(move |m| m.rule == rule);
        let largest = |rule| of(rule).map(|m| m.value).max().unwrap_or(0);
        let mut row = Self {
            name: one.name().to_owned(),
            fields: largest(Rule::Fields),
            spread: of(Rule::Files).filter(|m| m.is_over()).count(),
            methods: largest(Rule::Methods),
            likewise: largest(Rule::Likewise),
            columns: largest(Rule::Columns),
            words: largest(Rule::Words),
            ..Self::default()
        };
        for source in one.production() {
            let whole: BTreeSet<usize> =
                source.comments.iter().filter(|c| c.whole_line).map(|c| c.line).collect();
            for (index, _) in source.text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
                let line = index + 1;
                if source.is_skipped(line) {
                    row.tests += 1;
                } else if whole.contains(&line) {
                    row.comments += 1;
                } else {
                    row.code += 1;
                }
            }
        }
        let texts = one.tests.iter().filter_map(|path| tree.sources.get(path));
        row.tests += texts.map(|text| text.lines().filter(|l| !l.trim().is_empty()).count()).sum::<usize>();
        row
    }

    fn add(&mut self, other: &Self) {
        self.code += other.code;
        self.tests += other.tests;
        self.comments += other.comments;
        self.fields = self.fields.max(other.fields);
        self.spread += other.spread;
        self.methods = self.methods.max(other.methods);
        self.likewise += other.likewise;
        self.columns += other.columns;
        self.words += other.words;
    }
}

/// The rows in Markdown, with their sums and largest values.
pub fn table(rows: &[Row]) -> String {
    let mut all = Row { name: "all".to_owned(), ..Row::default() };
    rows.iter().for_each(|row| all.add(row));
    let mut text = "\
| crate | code | tests | comments | fields of a type, most | types in > 2 files | methods of a trait, most | \"Likewise\" | \
long comment lines | words |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for r in rows.iter().chain([&all]) {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            r.name,
            r.code,
            r.tests,
            r.comments,
            r.fields,
            r.spread,
            r.methods,
            r.likewise,
            r.columns,
            r.words
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Manifest;

    #[test]
    fn lines_of_a_crate() {
        let tree = Tree::of(&[
            (
                "c/src/lib.rs",
                "//! A.\n\nfn f() {} // b\nstruct A { a: u8, b: u8 }\n#[cfg(test)]\nmod t {\n}\n",
            ),
            ("c/tests/t.rs", "// c\n\nfn t() {}\n"),
        ]);
        let one = Crate::read(&tree, Manifest::of_library("c")).unwrap();
        let row = Row::of(&tree, &one, &crate::sizes::measure(&one));
        assert_eq!((row.code, row.tests, row.comments, row.fields), (2, 5, 1, 2));
        assert!(table(&[row]).ends_with("| all | 2 | 5 | 1 | 2 | 0 | 0 | 0 | 0 | 0 |\n"));
    }
}
