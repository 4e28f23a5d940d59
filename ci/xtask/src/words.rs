//! Words that have a term, in comments and names; long comment lines; doc comments that do not stand alone.

use syn::visit::{self, Visit};
use syn::{Ident, Signature};

use crate::comments::Comment;
use crate::rules::{Measure, Rule, Site};
use crate::source::Source;
use crate::workspace::Crate;

const COLUMNS: usize = 110;

/// Words that no comment and no identifier has, beside those of the table.
const ALWAYS: [&str; 3] = ["told", "tell", "tells"];

/// Words of the table that are plain English too: they count in identifiers alone.
const PLAIN: [&str; 11] =
    ["alone", "given", "Given", "learn", "look", "loose", "more", "stopped", "turn", "Hold", "Share"];

/// A word, or a phrase, that a term replaces.
#[derive(Debug, PartialEq, Eq)]
pub struct Word {
    parts: Vec<String>,
    /// A type's name: `Share` is one, `share` is another word.
    capital: bool,
    /// `name()`: functions alone.
    call: bool,
}

impl Word {
    fn of(listed: &str) -> Self {
        let call = listed.ends_with("()");
        let capital = listed.starts_with(char::is_uppercase);
        let parts = listed.trim_end_matches("()").split([' ', '_']).map(str::to_owned).collect();
        Self { parts, capital, call }
    }

    fn is_plain(&self) -> bool {
        self.parts.len() == 1 && PLAIN.contains(&self.parts[0].as_str())
    }

    fn starts(&self, parts: &[Part]) -> bool {
        self.parts.len() <= parts.len()
            && self.parts.iter().zip(parts).all(|(word, part)| {
                if self.capital { *word == part.text && !part.begins } else { part.lower == *word }
            })
    }
}

/// The third column of the table of words in CONTRIBUTING.md.
pub fn table(text: &str) -> Vec<Word> {
    let rows = text.lines().skip_while(|l| !(l.starts_with("| term |") && l.contains("word in code")));
    let cells = rows.take_while(|l| l.starts_with('|')).skip(2).filter_map(|row| row.split('|').nth(3));
    let listed = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let mut words: Vec<Word> = Vec::new();
    for word in listed.chain(ALWAYS).map(Word::of) {
        if !words.contains(&word) {
            words.push(word);
        }
    }
    // A phrase before the words that it has.
    words.sort_by_key(|word| std::cmp::Reverse(word.parts.len()));
    words
}

/// A part of an identifier, or a word of a comment.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    text: String,
    lower: String,
    line: usize,
    /// The first word of a sentence, capital for that.
    begins: bool,
}

impl Part {
    fn new(text: String, line: usize, begins: bool) -> Self {
        Self { lower: text.to_lowercase(), text, line, begins }
    }
}

/// The parts of a name: `look_at`, `LookAt`, `LOOK_AT`.
fn parts_of(name: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for piece in name.split('_').filter(|p| !p.is_empty()) {
        let camel = piece.chars().any(char::is_lowercase);
        let mut part = String::new();
        for c in piece.chars() {
            if camel && c.is_uppercase() && !part.is_empty() {
                parts.push(std::mem::take(&mut part));
            }
            part.push(c);
        }
        parts.push(part);
    }
    parts
}

/// The words found in a row of parts, longest first, none counted twice.
fn find(parts: &[Part], words: &[Word], wanted: impl Fn(&Word) -> bool) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < parts.len() {
        let word = words.iter().filter(|w| wanted(w)).find(|w| w.starts(&parts[at..]));
        match word {
            Some(word) => {
                found.push((parts[at].line, word.parts.join(" ")));
                at += word.parts.len();
            }
            None => at += 1,
        }
    }
    found
}

/// All that is counted of a crate's production code.
pub fn measure(one: &Crate, words: &[Word]) -> Vec<Measure> {
    let rules = [Rule::Columns, Rule::Likewise, Rule::Words];
    let mut measures = rules.map(|rule| Measure {
        rule,
        package: one.name().to_owned(),
        name: String::new(),
        value: 0,
        sites: Vec::new(),
    });
    for source in one.production() {
        let found = [columns(source), likewise(source), all_words(source, words)];
        for (measure, found) in measures.iter_mut().zip(found) {
            let site = |(line, text)| Site { file: source.path.clone(), line, text };
            measure.sites.extend(found.into_iter().map(site));
            measure.value = measure.sites.len();
        }
    }
    measures.into()
}

fn columns(source: &Source) -> Vec<(usize, String)> {
    // An address cannot be wrapped.
    let long = source.production_comments().filter(|c| c.columns > COLUMNS && c.text.contains(' '));
    long.map(|c| (c.line, format!("{} columns", c.columns))).collect()
}

fn likewise(source: &Source) -> Vec<(usize, String)> {
    let docs = source.production_comments().filter(|c| c.doc);
    docs.filter(|c| c.text.to_lowercase().contains("likewise")).map(|c| (c.line, c.text.clone())).collect()
}

fn all_words(source: &Source, words: &[Word]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut block: Vec<Part> = Vec::new();
    let mut last: Option<&Comment> = None;
    for comment in source.production_comments() {
        if last.is_none_or(|l| l.line + 1 != comment.line || l.doc != comment.doc) {
            found.extend(find(&std::mem::take(&mut block), words, |w| !w.call && !w.is_plain()));
        }
        add_comment(comment, &mut block);
        last = Some(comment);
    }
    found.extend(find(&block, words, |w| !w.call && !w.is_plain()));
    let mut names = Names { source, words, found };
    names.visit_file(&source.syntax);
    names.found.sort();
    names.found
}

fn add_comment(comment: &Comment, block: &mut Vec<Part>) {
    let mut begins = block.is_empty();
    let mut word = String::new();
    for c in comment.text.chars().chain([' ']) {
        if c.is_alphanumeric() || c == '_' {
            word.push(c);
            continue;
        }
        for (i, text) in parts_of(&std::mem::take(&mut word)).into_iter().enumerate() {
            block.push(Part::new(text, comment.line, begins && i == 0));
            begins = false;
        }
        begins = begins && c == ' ' || ".:?!".contains(c);
    }
}

/// Reads the names that items, fields, arguments and variables define.
struct Names<'a> {
    source: &'a Source,
    words: &'a [Word],
    found: Vec<(usize, String)>,
}

impl Names<'_> {
    fn add(&mut self, name: &Ident, function: bool) {
        let line = name.span().start().line;
        if self.source.is_skipped(line) {
            return;
        }
        let text = name.to_string();
        let begins = !text.starts_with(char::is_uppercase);
        let parts: Vec<Part> =
            parts_of(&text).into_iter().map(|text| Part::new(text, line, begins)).collect();
        let is = |word: &Word| !word.call || function && word.parts.len() == parts.len();
        let found = find(&parts, self.words, is);
        self.found.extend(found.into_iter().map(|(line, word)| (line, format!("{word}: {text}"))));
    }
}

impl<'a> Visit<'a> for Names<'_> {
    fn visit_item(&mut self, item: &'a syn::Item) {
        use syn::Item::*;
        let name = match item {
            Const(i) => Some(&i.ident),
            Enum(i) => Some(&i.ident),
            Mod(i) => Some(&i.ident),
            Static(i) => Some(&i.ident),
            Struct(i) => Some(&i.ident),
            Trait(i) => Some(&i.ident),
            Type(i) => Some(&i.ident),
            Union(i) => Some(&i.ident),
            Macro(i) => i.ident.as_ref(),
            _ => None,
        };
        if let Some(name) = name {
            self.add(name, false);
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item(&mut self, item: &'a syn::ImplItem) {
        // Functions of a trait are named by it.
        if let syn::ImplItem::Const(i) = item {
            self.add(&i.ident, false);
        }
        visit::visit_impl_item(self, item);
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        if item.trait_.is_none() {
            visit::visit_item_impl(self, item);
            return;
        }
        for item in &item.items {
            if let syn::ImplItem::Fn(function) = item {
                function.sig.inputs.iter().for_each(|input| self.visit_fn_arg(input));
                self.visit_block(&function.block);
            }
        }
    }

    fn visit_signature(&mut self, signature: &'a Signature) {
        self.add(&signature.ident, true);
        visit::visit_signature(self, signature);
    }

    fn visit_field(&mut self, field: &'a syn::Field) {
        if let Some(name) = &field.ident {
            self.add(name, false);
        }
        visit::visit_field(self, field);
    }

    fn visit_variant(&mut self, variant: &'a syn::Variant) {
        self.add(&variant.ident, false);
        visit::visit_variant(self, variant);
    }

    fn visit_pat_ident(&mut self, pattern: &'a syn::PatIdent) {
        // A name in a pattern that begins with a capital is a constant's.
        if !pattern.ident.to_string().starts_with(char::is_uppercase) {
            self.add(&pattern.ident, false);
        }
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_type_param(&mut self, parameter: &'a syn::TypeParam) {
        self.add(&parameter.ident, false);
        visit::visit_type_param(self, parameter);
    }
}

#[cfg(test)]
#[path = "words_tests.rs"]
mod tests;
