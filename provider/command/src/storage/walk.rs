//! What is in a directory that is to be copied.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::dir::Dir;
use super::files::{failed, named};
use crate::fabric::Error;

/// A file, by its path below the directory.
pub(super) struct Entry {
    pub path: PathBuf,
    pub len: u64,
}

/// A directory, and its permissions.
pub(super) struct Folder {
    pub path: PathBuf,
    pub mode: u32,
}

/// Everything below a directory, in an order that does not change. Links are not followed.
#[derive(Default)]
pub(super) struct Tree {
    /// The directory itself, by no path, and then each behind the one that it is in.
    pub directories: Vec<Folder>,
    pub files: Vec<Entry>,
    /// What has no bytes of its own: paths, each with what it is.
    pub others: Vec<(PathBuf, &'static str)>,
}

impl Tree {
    pub fn of(top: &Dir) -> Result<Tree, Error> {
        let mut tree = Tree::default();
        let mut next = 0;
        tree.directories.push(Folder { path: PathBuf::new(), mode: 0 });
        while let Some(folder) = tree.directories.get(next) {
            let path = folder.path.clone();
            let dir = top.below(&path)?;
            tree.directories[next].mode = dir.metadata()?.mode();
            tree.list(&dir, &path)?;
            next += 1;
        }
        Ok(tree)
    }

    fn list(&mut self, dir: &Dir, below: &Path) -> Result<(), Error> {
        for name in dir.names()? {
            let (of, path) = (dir.look(&name)?, below.join(name));
            match special(of.st_mode) {
                Some(what) => self.others.push((path, what)),
                None if of.st_mode & libc::S_IFMT == libc::S_IFDIR => {
                    self.directories.push(Folder { path, mode: 0 });
                }
                None => self.files.push(Entry { path, len: of.st_size as u64 }),
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

fn special(mode: libc::mode_t) -> Option<&'static str> {
    match mode & libc::S_IFMT {
        libc::S_IFLNK => Some("a symbolic link"),
        libc::S_IFIFO => Some("a pipe"),
        libc::S_IFSOCK => Some("a socket"),
        libc::S_IFBLK | libc::S_IFCHR => Some("a device"),
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
