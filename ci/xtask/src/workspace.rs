//! The members of the workspace: what each uses, and its parsed files.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::modules::Modules;
use crate::source::Source;
use crate::tree::Tree;

/// A crate that another one uses, but for development.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Used {
    /// The folder of a member.
    Member(String),
    /// The name of a crate of others.
    Other(String),
}

/// What Cargo.toml says of a member.
#[derive(Debug, Clone)]
pub struct Manifest {
    pub name: String,
    pub dir: String,
    /// Root files of its library, programs and build script.
    pub roots: Vec<String>,
    /// Normal and build dependencies, for every target, optional ones included.
    pub uses: BTreeSet<Used>,
}

impl Manifest {
    /// A library alone, for tests.
    #[cfg(test)]
    pub fn of_library(name: &str) -> Manifest {
        let roots = vec![format!("{name}/src/lib.rs")];
        Manifest { name: name.to_owned(), dir: name.to_owned(), roots, uses: BTreeSet::new() }
    }

    /// A crate of tests, whose code is no production code.
    pub fn is_test(&self) -> bool {
        self.dir.starts_with("tests/")
    }
}

/// What cargo says of the members.
pub fn manifests(root: &Path) -> Result<Vec<Manifest>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--locked", "--format-version", "1", "--manifest-path"])
        .arg(root.join("Cargo.toml"))
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    parse(&String::from_utf8_lossy(&output.stdout), root)
}

fn parse(json: &str, root: &Path) -> Result<Vec<Manifest>, String> {
    let all: Value = serde_json::from_str(json).map_err(|e| format!("cargo metadata: {e}"))?;
    let below = |path: &Value| {
        let path = Path::new(path.as_str()?);
        Some(path.strip_prefix(root).ok()?.to_str()?.to_owned())
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for package in list(&all["packages"]) {
        let manifest = below(&package["manifest_path"]).ok_or("a member outside the root")?;
        let not_for_tests = |target: &&Value| {
            list(&target["kind"]).iter().all(|k| !matches!(k.as_str(), Some("test" | "example" | "bench")))
        };
        let uses = list(&package["dependencies"]).into_iter().filter(|d| d["kind"] != "dev");
        found.push(Manifest {
            name: package["name"].as_str().unwrap_or_default().to_owned(),
            dir: manifest.trim_end_matches("/Cargo.toml").to_owned(),
            roots: list(&package["targets"])
                .iter()
                .filter(not_for_tests)
                .filter_map(|t| below(&t["src_path"]))
                .collect(),
            uses: uses
                .map(|d| match below(&d["path"]) {
                    Some(dir) => Used::Member(dir),
                    None => Used::Other(d["name"].as_str().unwrap_or_default().to_owned()),
                })
                .collect(),
        });
    }
    found.sort_by(|a, b| a.dir.cmp(&b.dir));
    Ok(found)
}

/// A member with its files.
pub struct Crate {
    pub manifest: Manifest,
    /// The module tree of each root.
    pub modules: Vec<Modules>,
    /// Rust files that are tests, examples or models.
    pub tests: Vec<String>,
}

impl Crate {
    pub fn read(tree: &Tree, manifest: Manifest) -> Result<Self, String> {
        let modules =
            manifest.roots.iter().map(|root| Modules::read(tree, root)).collect::<Result<Vec<_>, _>>()?;
        let prefix = format!("{}/", manifest.dir);
        let production: BTreeSet<&str> = if manifest.is_test() {
            BTreeSet::new()
        } else {
            modules.iter().flat_map(|m| &m.files).map(|f| f.path.as_str()).filter(|p| !is_test(p)).collect()
        };
        let rust = tree.sources.keys().filter(|p| p.starts_with(&prefix) && p.ends_with(".rs"));
        let tests = rust.filter(|p| !production.contains(p.as_str()) && !is_generated(p)).cloned().collect();
        Ok(Self { manifest, modules, tests })
    }

    pub fn name(&self) -> &str {
        &self.manifest.name
    }

    /// Files of production code, generated ones left out.
    pub fn production(&self) -> impl Iterator<Item = &Source> {
        let all = self.modules.iter().flat_map(|m| &m.files);
        all.filter(|f| !self.manifest.is_test() && is_production(&f.path))
    }
}

/// A file that production code is in, if a module tree has it.
pub fn is_production(path: &str) -> bool {
    !is_test(path) && !is_generated(path)
}

fn is_test(path: &str) -> bool {
    let stem = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".rs");
    stem.ends_with("_tests") || stem.ends_with("_loom") || stem == "tests" || path.contains("/tests/")
}

/// Output of bindgen.
fn is_generated(path: &str) -> bool {
    path.ends_with("/bindings.rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = r#"{"packages": [{
        "name": "strait-a", "manifest_path": "/r/provider/a/Cargo.toml",
        "targets": [{"kind": ["lib"], "src_path": "/r/provider/a/src/lib.rs"},
                    {"kind": ["test"], "src_path": "/r/provider/a/tests/t.rs"}],
        "dependencies": [{"name": "strait-b", "path": "/r/provider/b", "kind": null},
                         {"name": "cc", "kind": "build"}, {"name": "proptest", "kind": "dev"}]}]}"#;

    #[test]
    fn metadata_of_a_member() {
        let found = parse(METADATA, Path::new("/r")).unwrap().remove(0);
        assert_eq!((found.name.as_str(), found.dir.as_str()), ("strait-a", "provider/a"));
        assert_eq!(found.roots, ["provider/a/src/lib.rs"]);
        let uses: Vec<_> = found.uses.into_iter().collect();
        assert_eq!(uses, [Used::Member("provider/b".to_owned()), Used::Other("cc".to_owned())]);
    }

    #[test]
    fn files_of_tests_are_no_production_code() {
        let tree = Tree::of(&[
            ("c/src/lib.rs", "mod a;\n#[cfg(test)]\nmod kit;\nmod bindings;"),
            ("c/src/a.rs", "#[cfg(all(test, loom))]\n#[path = \"a_loom.rs\"]\nmod loom;"),
            ("c/src/a_loom.rs", ""),
            ("c/src/kit.rs", ""),
            ("c/src/bindings.rs", ""),
            ("c/tests/t.rs", ""),
        ]);
        let one = Crate::read(&tree, Manifest::of_library("c")).unwrap();
        assert_eq!(
            one.production().map(|f| f.path.as_str()).collect::<Vec<_>>(),
            ["c/src/lib.rs", "c/src/a.rs"]
        );
        assert_eq!(one.tests, ["c/src/a_loom.rs", "c/src/kit.rs", "c/tests/t.rs"]);
    }
}
