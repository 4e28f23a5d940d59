//! Imports between the files of a crate run in one direction: there are no circles.
//!
//! A file imports another one if a path in its code (`use`, or `crate::a::b`, `super::b`, `a::b`) names a
//! definition of the other one. A re-export (`pub use`) is followed to the definition, and is no import by
//! itself; nor is `mod a;`.

use std::collections::{BTreeMap, BTreeSet};

use crate::modules::Modules;

/// Modules and names that a path has led through, against endless re-exports.
type Seen = Vec<(usize, String)>;

impl Modules {
    /// The module whose definition a path, seen from a module, names; None: another crate's.
    pub fn follow(&self, from: usize, path: &[String], seen: &Seen) -> Option<usize> {
        let (first, rest) = path.split_first()?;
        let module = &self.all[from];
        let at = match first.as_str() {
            "crate" => Some(0),
            "self" => Some(from),
            "super" => module.parent,
            _ => None,
        };
        if let Some(at) = at.or_else(|| module.children.get(first).copied()) {
            return self.inside(at, rest, seen);
        }
        let at = self.imported(from, first, seen)?;
        if rest.is_empty() { Some(at) } else { self.inside(at, rest, seen) }
    }

    /// The module whose definition a path below a module names.
    fn inside(&self, at: usize, path: &[String], seen: &Seen) -> Option<usize> {
        let Some((first, rest)) = path.split_first() else { return Some(at) };
        if first == "*" {
            return Some(at);
        }
        if first == "super" {
            return self.inside(self.all[at].parent?, rest, seen);
        }
        if let Some(&child) = self.all[at].children.get(first) {
            return self.inside(child, rest, seen);
        }
        match self.imported(at, first, seen) {
            Some(found) => self.inside(found, rest, seen),
            None => Some(at),
        }
    }

    /// The module that `use` takes a name from.
    fn imported(&self, at: usize, name: &str, seen: &Seen) -> Option<usize> {
        if seen.iter().any(|(m, n)| *m == at && n == name) {
            return None;
        }
        let mut seen = seen.clone();
        seen.push((at, name.to_owned()));
        let imports = &self.all[at].imports;
        let named = imports.iter().filter(|i| i.alias == name).find_map(|i| self.follow(at, &i.path, &seen));
        named.or_else(|| {
            let globs = imports.iter().filter(|i| i.alias == "*" && i.public);
            globs
                .filter_map(|i| self.follow(at, &i.path[..i.path.len() - 1], &seen))
                .find(|&m| self.defines(m, name))
        })
    }

    fn defines(&self, module: usize, name: &str) -> bool {
        self.all[module].defined.contains(name)
    }

    /// The modules that the code of a module names.
    fn used_by(&self, at: usize) -> Vec<usize> {
        let module = &self.all[at];
        let mut used = Vec::new();
        for import in &module.imports {
            let Some((last, above)) = import.path.split_last() else { continue };
            if import.alias == "*" {
                used.extend(self.follow(at, above, &Seen::new()).filter(|_| !import.public));
                continue;
            }
            let Some(to) = self.follow(at, &import.path, &Seen::new()) else { continue };
            // A module is imported for its content: see paths below. A function may have its name.
            let above = if above.is_empty() { Some(at) } else { self.follow(at, above, &Seen::new()) };
            let is_module =
                above.is_some_and(|m| self.all[m].children.contains_key(last)) && !self.defines(to, last);
            if !is_module && (!import.public || module.identifiers.contains(&import.alias)) {
                used.push(to);
            }
        }
        used.extend(module.paths.iter().filter_map(|path| self.follow(at, path, &Seen::new())));
        used
    }

    /// For each file those that it imports.
    fn edges(&self) -> BTreeMap<usize, BTreeSet<usize>> {
        let mut edges: BTreeMap<usize, BTreeSet<usize>> =
            (0..self.files.len()).map(|f| (f, BTreeSet::new())).collect();
        for (index, module) in self.all.iter().enumerate() {
            let to = self.used_by(index).into_iter().map(|m| self.all[m].file).filter(|f| *f != module.file);
            edges.entry(module.file).or_default().extend(to);
        }
        edges
    }

    /// One line for each file that is in a circle of imports.
    pub fn circles(&self) -> Vec<String> {
        let edges = self.edges();
        let root = &self.files[0].path;
        let top = root.rsplit_once('/').map_or("", |(folder, _)| folder);
        let name = |file: &usize| self.files[*file].path.trim_start_matches(top).trim_start_matches('/');
        let mut found = Vec::new();
        for &file in edges.keys() {
            if let Some(way) = way_back(&edges, file) {
                let names: Vec<_> = way.iter().map(name).collect();
                let path = &self.files[file].path;
                found
                    .push(format!("{path}:1: layers: a circle of imports: {}: break it", names.join(" -> ")));
            }
        }
        found
    }
}

/// The shortest way from a file back to itself.
fn way_back(edges: &BTreeMap<usize, BTreeSet<usize>>, file: usize) -> Option<Vec<usize>> {
    let mut before = BTreeMap::new();
    let mut queue = std::collections::VecDeque::from([file]);
    while let Some(at) = queue.pop_front() {
        for &to in &edges[&at] {
            if to == file {
                let mut way = vec![file, at];
                while let Some(&earlier) = before.get(way.last()?).filter(|_| way.last() != Some(&file)) {
                    way.push(earlier);
                }
                way.reverse();
                return Some(if at == file { vec![file, file] } else { way });
            }
            if to != file && !before.contains_key(&to) {
                before.insert(to, at);
                queue.push_back(to);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        Modules::read(&Tree::of(files), "c/src/lib.rs").unwrap().circles()
    }

    #[test]
    fn imports_in_one_direction_are_sound() {
        let files = [
            ("c/src/lib.rs", "mod a;\nmod b;\npub use a::A;"),
            ("c/src/a.rs", "pub struct A;"),
            ("c/src/b.rs", "use crate::A;\nfn f(_: A) {}"),
        ];
        assert_eq!(circles(&files), [""; 0]);
    }

    #[test]
    fn visibility_is_no_import() {
        let files = [
            ("c/src/lib.rs", "mod a;\nuse a::A;\nstruct B(A);"),
            ("c/src/a.rs", "pub(in crate::a) struct C;\npub(in crate) struct A(C);"),
        ];
        assert_eq!(circles(&files), [""; 0]);
    }

    #[test]
    fn a_circle_by_a_name_that_is_exported_again_is_found() {
        let files = [
            ("c/src/lib.rs", "mod a;\nmod b;\npub use b::B;"),
            ("c/src/a.rs", "use crate::B;\npub struct A(B);"),
            ("c/src/b.rs", "use crate::a::A;\npub struct B(Box<A>);"),
        ];
        let found = circles(&files);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], "c/src/a.rs:1: layers: a circle of imports: a.rs -> b.rs -> a.rs: break it");
    }

    #[test]
    fn a_circle_by_a_path_in_code_or_in_a_macro_call_is_found() {
        let files = [
            ("c/src/lib.rs", "mod a;\nmod b;"),
            ("c/src/a.rs", "fn f(_: &dyn crate::b::T) {}\npub fn g() {}"),
            ("c/src/b.rs", "pub trait T {}\nfn h() { println!(\"{:?}\", super::a::g()); }"),
        ];
        assert_eq!(circles(&files).len(), 2);
    }

    #[test]
    fn a_circle_of_three_files_has_its_way() {
        let files = [
            ("c/src/lib.rs", "mod a;\nmod b;\nmod c { pub mod d; }"),
            ("c/src/a.rs", "pub fn a() { crate::b::b() }"),
            ("c/src/b.rs", "pub fn b() { crate::c::d::d() }"),
            ("c/src/c/d.rs", "pub fn d() { crate::a::a() }"),
        ];
        assert!(circles(&files)[0].contains("a.rs -> b.rs -> c/d.rs -> a.rs"));
    }

    #[test]
    fn imports_of_tests_and_in_comments_are_none() {
        let files = [
            ("c/src/lib.rs", "mod a;\nmod b;"),
            (
                "c/src/a.rs",
                "pub fn a() {}\n// use crate::b;\n#[cfg(test)]\nmod tests {\n    use crate::b::b;\n}",
            ),
            ("c/src/b.rs", "pub fn b() { crate::a::a() }\nconst S: &str = \"crate::b::b\";"),
        ];
        assert_eq!(circles(&files), [""; 0]);
    }

    #[test]
    fn a_child_may_use_its_parent_but_not_both_ways() {
        let lib = ("c/src/lib.rs", "mod a;");
        let child = ("c/src/a/b.rs", "pub fn b() { super::a() }");
        assert_eq!(circles(&[lib, child, ("c/src/a.rs", "mod b;\npub fn a() {}")]), [""; 0]);
        assert_eq!(circles(&[lib, child, ("c/src/a.rs", "mod b;\npub fn a() { b::b() }")]).len(), 2);
    }

    #[test]
    fn groups_of_imports_and_aliases_are_followed() {
        let b = ("c/src/b.rs", "pub struct B;\npub fn f() -> crate::a::A { todo!() }");
        let lib = "mod a;\nmod b;\npub use b::{B as Public, f,};\nmod own { pub use super::a::A; }";
        let import = "use crate::{\n    own::{self},\n    Public,\n};\npub struct A(Public);";
        assert_eq!(circles(&[("c/src/lib.rs", lib), b, ("c/src/a.rs", import)]).len(), 2);
        let import = "use std::{fmt, io,};\nuse crate::{own,};\npub struct A(fmt::Error);";
        assert_eq!(circles(&[("c/src/lib.rs", lib), b, ("c/src/a.rs", import)]), [""; 0]);
    }
}
