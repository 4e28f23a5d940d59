//! Checks of the sources that no compiler makes: `cargo xtask check`; docs/ci.md lists the rules.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod changes;
mod comments;
mod imports;
mod layers;
mod limits;
mod measures;
mod modules;
mod promises;
mod rules;
mod sizes;
mod source;
mod tree;
mod words;
mod workspace;

use changes::Changes;
use rules::{Measure, Rule};
use tree::Tree;
use workspace::Crate;

const USAGE: &str = "\
usage: cargo xtask check [--write [--raise]]   check the sources; write the numbers that fell (or rose) to ci/limits.txt
       cargo xtask list RULE [CRATE]           where the sources have what a rule counts
       cargo xtask measures                    sizes of each crate, as a table";

/// The workspace, read and measured.
struct Workspace {
    tree: Tree,
    crates: Vec<Crate>,
    measures: Vec<Measure>,
}

impl Workspace {
    fn read(root: &Path) -> Result<Self, String> {
        let manifests = workspace::manifests(root)?;
        let tree =
            Tree::read(root, &["hmem", "provider", "tests", "include", "ci"]).map_err(|e| e.to_string())?;
        let contributing = tree.text("CONTRIBUTING.md").map_err(|e| e.to_string())?;
        let table = words::table(&contributing);
        let mut crates = Vec::new();
        let mut measures = sizes::folders(&tree);
        for manifest in manifests {
            let one = Crate::read(&tree, manifest)?;
            measures.extend(sizes::measure(&one));
            measures.extend(words::measure(&one, &table));
            crates.push(one);
        }
        Ok(Self { tree, crates, measures })
    }

    fn check(&self, write: bool, raise: bool) -> Result<Vec<String>, String> {
        let manifests: Vec<_> = self.crates.iter().map(|c| c.manifest.clone()).collect();
        let mut failures = layers::check(&self.tree, &manifests);
        failures.extend(self.crates.iter().flat_map(|c| &c.modules).flat_map(|m| m.circles()));
        failures.extend(promises::check(&self.tree));
        let path = self.tree.root().join(limits::FILE);
        let mut text = std::fs::read_to_string(&path).unwrap_or_default();
        if write {
            text = limits::write(&limits::parse(&text)?, &self.measures, raise);
            std::fs::write(&path, &text).map_err(|e| format!("{}: {e}", limits::FILE))?;
        }
        failures.extend(limits::check(
            &limits::parse(&text)?,
            &self.measures,
            &Changes::read(self.tree.root()),
        ));
        Ok(failures)
    }

    fn list(&self, rule: Rule, package: Option<&str>) {
        let of = self.measures.iter().filter(|m| m.rule == rule && m.is_over());
        for measure in of.filter(|m| package.is_none_or(|p| m.package == p)) {
            for site in &measure.sites {
                println!("{}:{}: {}", site.file, site.line, site.text);
            }
        }
    }

    fn measures(&self) -> String {
        let production = self.crates.iter().filter(|c| !c.manifest.is_test());
        let rows: Vec<_> = production
            .map(|one| {
                let own: Vec<_> = self.measures.iter().filter(|m| m.package == one.name()).cloned().collect();
                measures::Row::of(&self.tree, one, &own)
            })
            .collect();
        measures::table(&rows)
    }
}

fn run(arguments: &[&str]) -> Result<ExitCode, String> {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from("ci/xtask"), PathBuf::from);
    let root = own.join("../..").canonicalize().map_err(|e| e.to_string())?;
    let read = || Workspace::read(&root);
    let (write, raise) = match arguments {
        ["check"] => (false, false),
        ["check", "--write"] => (true, false),
        ["check", "--write", "--raise"] | ["check", "--raise", "--write"] => (true, true),
        ["measures"] => {
            print!("{}", read()?.measures());
            return Ok(ExitCode::SUCCESS);
        }
        ["list", rule, package @ ..] if package.len() < 2 => {
            read()?.list(Rule::parse(rule).ok_or(USAGE)?, package.first().copied());
            return Ok(ExitCode::SUCCESS);
        }
        _ => return Err(USAGE.to_owned()),
    };
    let workspace = read()?;
    let failures = workspace.check(write, raise)?;
    failures.iter().for_each(|failure| println!("{failure}"));
    let files: usize = workspace.crates.iter().map(|c| c.production().count()).sum();
    println!(
        "check: {} crates, {files} production files, failures: {}",
        workspace.crates.len(),
        failures.len()
    );
    // The process ends: to free every syntax tree takes a sixth of its time.
    std::mem::forget(workspace);
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    run(&arguments).unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::from(2)
    })
}
