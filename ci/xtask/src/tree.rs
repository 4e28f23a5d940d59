//! The source tree: files by their path from the root of the repository.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Files that count as source files in a folder.
const SOURCES: [&str; 7] = ["rs", "c", "h", "cpp", "hpp", "cu", "cuh"];

#[derive(Debug, Default)]
pub struct Tree {
    root: PathBuf,
    /// Rust text; of files in other languages the path alone.
    pub sources: BTreeMap<String, String>,
    /// Other files of a tree in memory.
    others: BTreeMap<String, String>,
}

impl Tree {
    /// All source files below these folders.
    pub fn read(root: &Path, folders: &[&str]) -> io::Result<Self> {
        let mut tree = Self { root: root.to_owned(), ..Self::default() };
        for folder in folders {
            tree.walk(folder)?;
        }
        Ok(tree)
    }

    /// A tree in memory.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self { root: PathBuf::from("/nonexistent"), ..Self::default() };
        for (path, text) in files {
            let part = if is_source(path) { &mut tree.sources } else { &mut tree.others };
            part.insert((*path).to_owned(), (*text).to_owned());
        }
        tree
    }

    fn walk(&mut self, folder: &str) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join(folder))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{folder}/{name}");
            if entry.file_type()?.is_dir() {
                if name != "target" && !name.starts_with(['.', '_']) {
                    self.walk(&path)?;
                }
            } else if is_source(&path) {
                let text =
                    if path.ends_with(".rs") { fs::read_to_string(entry.path())? } else { String::new() };
                self.sources.insert(path, text);
            }
        }
        Ok(())
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The text of any file.
    pub fn text(&self, path: &str) -> io::Result<String> {
        let known =
            self.others.get(path).or_else(|| self.sources.get(path).filter(|_| path.ends_with(".rs")));
        known.map_or_else(|| fs::read_to_string(self.root.join(path)), |text| Ok(text.clone()))
    }
}

fn is_source(path: &str) -> bool {
    path.rsplit_once('.').is_some_and(|(_, end)| SOURCES.contains(&end))
}
