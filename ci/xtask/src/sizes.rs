//! Sizes: fields of a type, files that implement it, methods of a trait, lines of a file, files of a folder.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Attribute, Fields, Ident};

use crate::modules::Modules;
use crate::rules::{Measure, Rule, Site};
use crate::source::Source;
use crate::tree::Tree;
use crate::workspace::{self, Crate};

/// Fields, methods, lines and files of a crate's production code.
pub fn measure(one: &Crate) -> Vec<Measure> {
    let mut found = Vec::new();
    for source in one.production() {
        let mut sizes = Sizes { source, package: one.name(), found: &mut found };
        sizes.visit_file(&source.syntax);
        found.push(lines(source));
    }
    for modules in one.modules.iter().filter(|_| !one.manifest.is_test()) {
        found.extend(files(modules, one.name()));
    }
    found
}

struct Sizes<'a> {
    source: &'a Source,
    package: &'a str,
    found: &'a mut Vec<Measure>,
}

impl Sizes<'_> {
    fn add(&mut self, rule: Rule, name: &Ident, value: usize) {
        let line = name.span().start().line;
        if !self.source.is_skipped(line) {
            let site = Site { file: self.source.path.clone(), line, text: name.to_string() };
            let (package, name) = (self.package.to_owned(), name.to_string());
            self.found.push(Measure { rule, package, name, value, sites: vec![site] });
        }
    }

    fn fields(&mut self, name: &Ident, attrs: &[Attribute], fields: &Fields) {
        if !is_repr_c(attrs) {
            let kept = fields.iter().filter(|f| !crate::source::is_off(&f.attrs));
            self.add(Rule::Fields, name, kept.count());
        }
    }
}

impl<'a> Visit<'a> for Sizes<'_> {
    fn visit_item_struct(&mut self, item: &'a syn::ItemStruct) {
        self.fields(&item.ident, &item.attrs, &item.fields);
    }

    fn visit_item_enum(&mut self, item: &'a syn::ItemEnum) {
        for variant in &item.variants {
            self.fields(&variant.ident, &item.attrs, &variant.fields);
        }
    }

    fn visit_item_trait(&mut self, item: &'a syn::ItemTrait) {
        let methods = item.items.iter().filter(|i| matches!(i, syn::TraitItem::Fn(_)));
        self.add(Rule::Methods, &item.ident, methods.count());
        visit::visit_item_trait(self, item);
    }
}

/// A type whose layout an interface gives.
fn is_repr_c(attrs: &[Attribute]) -> bool {
    attrs.iter().filter(|a| a.path().is_ident("repr")).any(|a| {
        let mut c = false;
        let _ = a.parse_nested_meta(|meta| {
            c |= meta.path.is_ident("C");
            if meta.input.peek(syn::token::Paren) {
                meta.parse_nested_meta(|_| Ok(())).or(Ok(()))
            } else {
                Ok(())
            }
        });
        c
    })
}

fn lines(source: &Source) -> Measure {
    let value = (1..=source.text.lines().count()).filter(|&l| !source.is_skipped(l)).count();
    let site = Site { file: source.path.clone(), line: 1, text: String::new() };
    Measure { rule: Rule::Lines, package: String::new(), name: source.path.clone(), value, sites: vec![site] }
}

/// For each type of a crate the production files with an `impl` of it.
fn files(modules: &Modules, package: &str) -> Vec<Measure> {
    let mut of: BTreeMap<(usize, String), BTreeMap<&str, usize>> = BTreeMap::new();
    for (index, module) in modules.all.iter().enumerate() {
        let file = modules.files[module.file].path.as_str();
        if !workspace::is_production(file) {
            continue;
        }
        for block in &module.impls {
            if let Some((at, name)) = type_of(modules, index, &block.of, &mut BTreeSet::new()) {
                of.entry((at, name)).or_default().entry(file).or_insert(block.line);
            }
        }
    }
    let measures = of.into_iter().map(|((_, name), files)| Measure {
        rule: Rule::Files,
        package: package.to_owned(),
        value: files.len(),
        sites: files
            .into_iter()
            .map(|(file, line)| Site { file: file.to_owned(), line, text: format!("impl of {name}") })
            .collect(),
        name,
    });
    measures.collect()
}

/// The module and the name of the type that a path names; None: another crate's.
fn type_of(
    modules: &Modules,
    from: usize,
    path: &[String],
    seen: &mut BTreeSet<usize>,
) -> Option<(usize, String)> {
    let (last, above) = path.split_last()?;
    let is_type = |at: usize, name: &str| modules.all[at].types.contains(name);
    if above.is_empty() && is_type(from, last) {
        return Some((from, last.clone()));
    }
    // The name behind `as`.
    let imports = &modules.all[from].imports;
    let renamed =
        imports.iter().find(|i| above.is_empty() && i.alias == *last && i.path.last() != Some(last));
    let name = renamed.and_then(|i| i.path.last()).unwrap_or(last);
    if let Some(at) = modules.follow(from, path, &Vec::new()) {
        if is_type(at, name) {
            return Some((at, name.clone()));
        }
    }
    let globs = imports.iter().filter(|i| above.is_empty() && i.alias == "*");
    for glob in globs {
        let there = modules.follow(from, &glob.path[..glob.path.len() - 1], &Vec::new());
        if let Some(there) = there.filter(|t| seen.insert(*t)) {
            if let Some(found) = type_of(modules, there, path, seen) {
                return Some(found);
            }
        }
    }
    None
}

/// For each folder its source files, those of tests included.
pub fn folders(tree: &Tree) -> Vec<Measure> {
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for path in tree.sources.keys() {
        *count.entry(path.rsplit_once('/').map_or("", |(folder, _)| folder)).or_default() += 1;
    }
    let site = |folder: &str| Site { file: folder.to_owned(), line: 1, text: String::new() };
    let measures = count.into_iter().map(|(folder, value)| Measure {
        rule: Rule::Folder,
        package: String::new(),
        name: folder.to_owned(),
        value,
        sites: vec![site(folder)],
    });
    measures.collect()
}

#[cfg(test)]
#[path = "sizes_tests.rs"]
mod tests;
