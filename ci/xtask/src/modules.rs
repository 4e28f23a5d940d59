//! The modules of a crate: which file each is in, what it defines, imports and implements.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::Item;

use crate::source::{self, Source};
use crate::tree::Tree;

const DEFINING: [&str; 8] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static"];
const TYPES: [&str; 3] = ["struct", "enum", "union"];

/// The names of a path, without generic arguments.
pub type Path = Vec<String>;

/// What `use` makes of a path.
#[derive(Debug)]
pub struct Import {
    pub path: Path,
    /// The name in this module; `*` for a glob.
    pub alias: String,
    pub public: bool,
}

/// An `impl` block.
#[derive(Debug)]
pub struct Impl {
    pub of: Path,
    pub line: usize,
}

#[derive(Debug, Default)]
pub struct Module {
    pub parent: Option<usize>,
    /// Index of its file in [`Modules::files`].
    pub file: usize,
    pub children: BTreeMap<String, usize>,
    pub imports: Vec<Import>,
    pub impls: Vec<Impl>,
    /// Names that items here define, nested ones included.
    pub defined: BTreeSet<String>,
    pub types: BTreeSet<String>,
    /// Paths in code, macro calls included.
    pub paths: Vec<Path>,
    pub identifiers: HashSet<String>,
}

/// The module tree of one library or program, without modules for tests or loom alone.
#[derive(Default)]
pub struct Modules {
    pub files: Vec<Source>,
    pub all: Vec<Module>,
}

impl Modules {
    /// The tree below a root file: lib.rs, main.rs.
    pub fn read(tree: &Tree, root: &str) -> Result<Self, String> {
        let mut modules = Self::default();
        let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder);
        modules.add_file(tree, None, root, folder)?;
        Ok(modules)
    }

    fn add_file(
        &mut self,
        tree: &Tree,
        parent: Option<usize>,
        path: &str,
        folder: &str,
    ) -> Result<usize, String> {
        let text = tree.sources.get(path).ok_or_else(|| format!("{path}: no such module"))?;
        let source = Source::parse(path, text)?;
        let tokens = source.tokens.clone();
        let file = self.files.len();
        self.files.push(source);
        let items = std::mem::take(&mut self.files[file].syntax.items);
        let added = self.add(tree, parent, file, &items, tokens, folder);
        self.files[file].syntax.items = items;
        added
    }

    /// A module with these items; the files of its child modules are in `folder`.
    fn add(
        &mut self,
        tree: &Tree,
        parent: Option<usize>,
        file: usize,
        items: &[Item],
        tokens: TokenStream,
        folder: &str,
    ) -> Result<usize, String> {
        let index = self.all.len();
        self.all.push(Module { parent, file, ..Module::default() });
        let mut inline = BTreeMap::new();
        let mut module = Module { parent, file, ..Module::default() };
        Scan { source: &self.files[file], module: &mut module, inline: &mut inline }.stream(tokens);
        self.all[index] = module;
        for item in items {
            if source::is_off(source::attributes(item)) {
                continue;
            }
            match item {
                Item::Impl(block) => {
                    if let Some(of) = self_type(&block.self_ty) {
                        let line = block.impl_token.span.start().line;
                        self.all[index].impls.push(Impl { of, line });
                    }
                }
                Item::Mod(child) => {
                    let name = child.ident.to_string();
                    let at = match &child.content {
                        Some((_, items)) => {
                            let tokens = inline.remove(&name).unwrap_or_default();
                            self.add(tree, Some(index), file, items, tokens, &format!("{folder}/{name}"))?
                        }
                        None => {
                            let (path, folder) = self.file_of(tree, file, folder, child)?;
                            self.add_file(tree, Some(index), &path, &folder)?
                        }
                    };
                    self.all[index].children.insert(name, at);
                }
                _ => {}
            }
        }
        Ok(index)
    }

    /// The file of a `mod name;`, and the folder of its child modules.
    fn file_of(
        &self,
        tree: &Tree,
        file: usize,
        folder: &str,
        child: &syn::ItemMod,
    ) -> Result<(String, String), String> {
        let name = child.ident.to_string();
        let here = &self.files[file].path;
        if let Some(path) = path_attribute(&child.attrs) {
            let full = normal(&format!("{}/{path}", here.rsplit_once('/').map_or("", |(folder, _)| folder)));
            let folder = full.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_owned());
            return Ok((full, folder));
        }
        let below = format!("{folder}/{name}");
        let found = [format!("{below}.rs"), format!("{below}/mod.rs")]
            .into_iter()
            .find(|p| tree.sources.contains_key(p));
        let line = child.ident.span().start().line;
        found.map(|p| (p, below)).ok_or_else(|| format!("{here}:{line}: no file of module {name}"))
    }
}

fn path_attribute(attrs: &[syn::Attribute]) -> Option<String> {
    let value = attrs.iter().find(|a| a.path().is_ident("path"))?.meta.require_name_value().ok()?;
    match &value.value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    }
}

/// The path without `.` and `..`.
fn normal(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// The path of the type that an `impl` is for; None: no type of its own.
fn self_type(ty: &syn::Type) -> Option<Path> {
    match ty {
        syn::Type::Path(path) if path.qself.is_none() => {
            Some(path.path.segments.iter().map(|s| s.ident.to_string()).collect())
        }
        syn::Type::Reference(to) => self_type(&to.elem),
        syn::Type::Paren(inner) => self_type(&inner.elem),
        syn::Type::Group(inner) => self_type(&inner.elem),
        _ => None,
    }
}

/// Reads the tokens of a module, those in macro calls included.
struct Scan<'a> {
    source: &'a Source,
    module: &'a mut Module,
    /// Tokens of inline modules, by name.
    inline: &'a mut BTreeMap<String, TokenStream>,
}

impl Scan<'_> {
    fn stream(&mut self, tokens: TokenStream) {
        let all: Vec<TokenTree> =
            tokens.into_iter().filter(|t| !self.source.is_skipped(t.span().start().line)).collect();
        let mut at = 0;
        while at < all.len() {
            at = match &all[at] {
                TokenTree::Ident(name) if name == "use" && !is_punct(all.get(at + 1), '<') => {
                    self.import(&all, at)
                }
                TokenTree::Ident(name) if name == "mod" => self.module(&all, at),
                TokenTree::Ident(_) => self.path(&all, at),
                // pub(in path) says who sees it, and uses nothing.
                TokenTree::Group(_) if at > 0 && is_ident(&all[at - 1], "pub") => at + 1,
                TokenTree::Group(group) => {
                    self.stream(group.stream());
                    at + 1
                }
                _ => at + 1,
            };
        }
    }

    fn import(&mut self, all: &[TokenTree], at: usize) -> usize {
        let public = match at.checked_sub(1).map(|i| &all[i]) {
            Some(TokenTree::Ident(name)) => name == "pub",
            Some(TokenTree::Group(_)) => at > 1 && is_ident(&all[at - 2], "pub"),
            _ => false,
        };
        let end = (at..all.len()).find(|&i| is_punct(all.get(i), ';')).unwrap_or(all.len());
        leaves(&all[at + 1..end], &[], public, &mut self.module.imports);
        end
    }

    fn module(&mut self, all: &[TokenTree], at: usize) -> usize {
        match (all.get(at + 1), all.get(at + 2)) {
            (Some(TokenTree::Ident(name)), Some(TokenTree::Group(body)))
                if body.delimiter() == Delimiter::Brace =>
            {
                self.inline.insert(name.to_string(), body.stream());
                at + 3
            }
            _ => at + 2,
        }
    }

    fn path(&mut self, all: &[TokenTree], at: usize) -> usize {
        let first = name(&all[at]);
        let mut names = vec![first];
        let mut end = at + 1;
        while is_colons(all, end) {
            let Some(next @ TokenTree::Ident(_)) = all.get(end + 2) else { break };
            names.push(name(next));
            end += 3;
        }
        self.define(all, at);
        self.module.identifiers.extend(names.iter().cloned());
        if names.len() > 1 && !(at > 1 && is_colons(all, at - 2)) {
            self.module.paths.push(names);
        }
        end
    }

    /// Notes the name that follows a keyword of a definition.
    fn define(&mut self, all: &[TokenTree], at: usize) {
        let keyword = name(&all[at]);
        let named = match keyword.as_str() {
            "macro_rules" if is_punct(all.get(at + 1), '!') => all.get(at + 2),
            keyword if DEFINING.contains(&keyword) => all.get(at + 1),
            _ => None,
        };
        if let Some(named @ TokenTree::Ident(_)) = named {
            self.module.defined.insert(name(named));
            if TYPES.contains(&keyword.as_str()) {
                self.module.types.insert(name(named));
            }
        }
    }
}

/// The paths of a `use`, each with its alias.
fn leaves(tokens: &[TokenTree], prefix: &[String], public: bool, into: &mut Vec<Import>) {
    // Empty: behind the last comma.
    for part in tokens.split(|t| is_punct(Some(t), ',')).filter(|part| !part.is_empty()) {
        let mut path = prefix.to_vec();
        let mut alias = None;
        let mut tokens = part.iter();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(name) if name == "as" => alias = tokens.next().map(ToString::to_string),
                TokenTree::Ident(one) => path.push(one.to_string()),
                TokenTree::Punct(p) if p.as_char() == '*' => path.push("*".to_owned()),
                TokenTree::Group(group) => {
                    let inner: Vec<_> = group.stream().into_iter().collect();
                    leaves(&inner, &path, public, into);
                    path.clear();
                }
                _ => {}
            }
        }
        if path.len() > 1 && path.last().is_some_and(|n| n == "self") {
            path.pop();
        }
        if let Some(last) = path.last() {
            let alias = alias.unwrap_or_else(|| last.clone());
            into.push(Import { path, alias, public });
        }
    }
}

fn name(token: &TokenTree) -> String {
    token.to_string()
}

fn is_ident(token: &TokenTree, text: &str) -> bool {
    matches!(token, TokenTree::Ident(name) if name == text)
}

fn is_punct(token: Option<&TokenTree>, c: char) -> bool {
    matches!(token, Some(TokenTree::Punct(p)) if p.as_char() == c)
}

fn is_colons(all: &[TokenTree], at: usize) -> bool {
    is_punct(all.get(at), ':') && is_punct(all.get(at + 1), ':')
}
