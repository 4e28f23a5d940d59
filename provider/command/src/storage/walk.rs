//! What is in a directory that is to be copied.

use std::fs::{FileType, Metadata};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::files::{failed, named};
use crate::fabric::Error;

/// A file, by its path below the directory.
pub(super) struct Entry {
    pub path: PathBuf,
    pub len: u64,
}

/// Everything below a directory, in an order that does not change. Links are not followed.
#[derive(Default)]
pub(super) struct Tree {
    /// Each behind the one that it is in.
    pub directories: Vec<PathBuf>,
    pub files: Vec<Entry>,
    /// What has no bytes of its own: paths, each with what it is.
    pub others: Vec<(PathBuf, &'static str)>,
}

impl Tree {
    pub fn of(top: &Path) -> Result<Tree, Error> {
        let mut tree = Tree::default();
        let mut next = 0;
        tree.list(top, Path::new(""))?;
        while let Some(directory) = tree.directories.get(next).cloned() {
            tree.list(top, &directory)?;
            next += 1;
        }
        Ok(tree)
    }

    fn list(&mut self, top: &Path, below: &Path) -> Result<(), Error> {
        let whole = top.join(below);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&whole).map_err(named(&whole))? {
            names.push(entry.map_err(named(&whole))?.file_name());
        }
        names.sort();
        for name in names {
            let path = below.join(name);
            let of = metadata(&top.join(&path))?;
            match special(of.file_type()) {
                Some(what) => self.others.push((path, what)),
                None if of.is_dir() => self.directories.push(path),
                None => self.files.push(Entry { path, len: of.len() }),
            }
        }
        Ok(())
    }

    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len).sum()
    }

    /// What is no file and no directory, as words; `None`: there is nothing of that sort.
    pub fn named_others(&self, top: &Path) -> Option<String> {
        const MOST: usize = 8;
        let name = |(path, what): &(PathBuf, &str)| format!("{} ({what})", top.join(path).display());
        let all: Vec<_> = self.others.iter().take(MOST).map(name).collect();
        let rest = match self.others.len().saturating_sub(MOST) {
            0 => String::new(),
            rest => format!(" and {rest} others"),
        };
        (!all.is_empty()).then(|| all.join(", ") + &rest)
    }
}

pub(super) fn metadata(path: &Path) -> Result<Metadata, Error> {
    std::fs::symlink_metadata(path).map_err(named(path))
}

fn special(of: FileType) -> Option<&'static str> {
    match of {
        of if of.is_symlink() => Some("a symbolic link"),
        of if of.is_fifo() => Some("a pipe"),
        of if of.is_socket() => Some("a socket"),
        of if of.is_block_device() || of.is_char_device() => Some("a device"),
        _ => None,
    }
}

/// The place of the copy is not there yet, and not inside of what is copied.
pub(super) fn check_place(from: &Path, to: &Path) -> Result<(), Error> {
    if std::fs::symlink_metadata(to).is_ok() {
        return Err(failed(format!("{}: it is there already", to.display())));
    }
    let parent = match to.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let parent = parent.canonicalize().map_err(named(parent))?;
    if parent.starts_with(from.canonicalize().map_err(named(from))?) {
        let (to, from) = (to.display(), from.display());
        return Err(failed(format!("{to}: it would be inside of {from}, which is copied")));
    }
    Ok(())
}
