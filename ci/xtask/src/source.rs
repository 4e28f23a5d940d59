//! One source file, parsed: syntax, comments, and the lines that are no production code.

use std::ops::RangeInclusive;

use proc_macro2::TokenStream;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Meta, Token};

use crate::comments::{self, Comment};

pub struct Source {
    pub path: String,
    pub text: String,
    pub syntax: syn::File,
    pub tokens: TokenStream,
    pub comments: Vec<Comment>,
    /// Items for tests or loom alone.
    skipped: Vec<RangeInclusive<usize>>,
}

impl Source {
    pub fn parse(path: &str, text: &str) -> Result<Self, String> {
        let failed = |e: &dyn std::fmt::Display| format!("{path}: {e}");
        let tokens: TokenStream = text.parse().map_err(|e| failed(&e))?;
        let syntax: syn::File =
            syn::parse2(tokens.clone()).map_err(|e| format!("{path}:{}: {e}", e.span().start().line))?;
        let mut skips = Skips(Vec::new());
        if is_off(&syntax.attrs) {
            skips.0.push(1..=usize::MAX);
        }
        skips.visit_file(&syntax);
        let comments = comments::split(text).0;
        Ok(Self { path: path.to_owned(), text: text.to_owned(), syntax, tokens, comments, skipped: skips.0 })
    }

    /// Whether a line is of code for tests or loom alone.
    pub fn is_skipped(&self, line: usize) -> bool {
        self.skipped.iter().any(|lines| lines.contains(&line))
    }

    /// Comments of production code.
    pub fn production_comments(&self) -> impl Iterator<Item = &Comment> {
        self.comments.iter().filter(|c| !self.is_skipped(c.line))
    }
}

/// Whether these attributes leave an item out of a build without tests and loom.
pub fn is_off(attrs: &[Attribute]) -> bool {
    attrs.iter().filter(|a| a.path().is_ident("cfg")).any(|a| match a.parse_args::<Meta>() {
        Ok(predicate) => holds(&predicate) == Some(false),
        Err(_) => false,
    })
}

/// The value of a predicate in a production build; None: depends on features or the target.
fn holds(predicate: &Meta) -> Option<bool> {
    match predicate {
        Meta::Path(path) => {
            ["test", "loom", "fuzzing", "miri"].iter().any(|n| path.is_ident(n)).then_some(false)
        }
        Meta::List(list) => {
            let parts = list
                .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
                .map(|parts| parts.iter().map(holds).collect::<Vec<_>>())
                .unwrap_or_default();
            if list.path.is_ident("not") {
                parts.first().copied().flatten().map(|v| !v)
            } else if list.path.is_ident("all") {
                parts.contains(&Some(false)).then_some(false)
            } else {
                // any()
                (!parts.is_empty() && parts.iter().all(|p| *p == Some(false))).then_some(false)
            }
        }
        Meta::NameValue(_) => None,
    }
}

struct Skips(Vec<RangeInclusive<usize>>);

impl Skips {
    fn add(&mut self, attrs: &[Attribute], node: &impl Spanned) -> bool {
        let off = !attrs.is_empty() && is_off(attrs);
        if off {
            let span = node.span();
            self.0.push(span.start().line..=span.end().line);
        }
        off
    }
}

impl<'a> Visit<'a> for Skips {
    fn visit_item(&mut self, item: &'a syn::Item) {
        if !self.add(attributes(item), item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'a syn::ImplItem) {
        let attrs = match item {
            syn::ImplItem::Const(i) => &i.attrs,
            syn::ImplItem::Fn(i) => &i.attrs,
            syn::ImplItem::Type(i) => &i.attrs,
            syn::ImplItem::Macro(i) => &i.attrs,
            _ => return,
        };
        if !self.add(attrs, item) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'a syn::TraitItem) {
        let attrs = match item {
            syn::TraitItem::Const(i) => &i.attrs,
            syn::TraitItem::Fn(i) => &i.attrs,
            syn::TraitItem::Type(i) => &i.attrs,
            syn::TraitItem::Macro(i) => &i.attrs,
            _ => return,
        };
        if !self.add(attrs, item) {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'a syn::Field) {
        self.add(&field.attrs, field);
    }

    fn visit_variant(&mut self, variant: &'a syn::Variant) {
        self.add(&variant.attrs, variant);
    }

    fn visit_arm(&mut self, arm: &'a syn::Arm) {
        if !self.add(&arm.attrs, arm) {
            visit::visit_arm(self, arm);
        }
    }

    fn visit_stmt(&mut self, stmt: &'a syn::Stmt) {
        let attrs: &[Attribute] = match stmt {
            syn::Stmt::Local(local) => &local.attrs,
            syn::Stmt::Macro(call) => &call.attrs,
            syn::Stmt::Expr(syn::Expr::Block(block), _) => &block.attrs,
            syn::Stmt::Expr(syn::Expr::If(branch), _) => &branch.attrs,
            _ => &[],
        };
        if !self.add(attrs, stmt) {
            visit::visit_stmt(self, stmt);
        }
    }
}

pub fn attributes(item: &syn::Item) -> &[Attribute] {
    use syn::Item::*;
    match item {
        Const(i) => &i.attrs,
        Enum(i) => &i.attrs,
        ExternCrate(i) => &i.attrs,
        Fn(i) => &i.attrs,
        ForeignMod(i) => &i.attrs,
        Impl(i) => &i.attrs,
        Macro(i) => &i.attrs,
        Mod(i) => &i.attrs,
        Static(i) => &i.attrs,
        Struct(i) => &i.attrs,
        Trait(i) => &i.attrs,
        TraitAlias(i) => &i.attrs,
        Type(i) => &i.attrs,
        Union(i) => &i.attrs,
        Use(i) => &i.attrs,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(text: &str) -> Vec<usize> {
        let source = Source::parse("a.rs", text).unwrap();
        (1..=text.lines().count()).filter(|&l| source.is_skipped(l)).collect()
    }

    #[test]
    fn items_for_tests_or_loom_are_skipped() {
        assert_eq!(skipped("fn a() {}\n#[cfg(test)]\nmod tests {\n}\nfn b() {}"), [2, 3, 4]);
        assert_eq!(skipped("#[cfg(all(test, not(loom)))]\nuse a::b;\nfn c() {}"), [1, 2]);
        assert_eq!(
            skipped("impl A {\n    #[cfg(any(test, fuzzing))]\n    fn c() {}\n    fn d() {}\n}"),
            [2, 3]
        );
        assert_eq!(skipped("fn f() {\n    #[cfg(loom)]\n    let a = 1;\n    b();\n}"), [2, 3]);
    }

    #[test]
    fn items_of_production_are_not_skipped() {
        assert_eq!(skipped("#[cfg(not(test))]\nfn a() {}\n#[cfg(not(loom))]\nfn b() {}"), [0; 0]);
        assert_eq!(
            skipped("#[cfg(any(test, feature = \"fake\"))]\nmod a {}\n#[cfg(unix)]\nfn b() {}"),
            [0; 0]
        );
    }
}
