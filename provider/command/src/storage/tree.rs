//! `strait storage --copy` of a directory: many files at once through memory of a kind. While one half of the
//! memory is written to files, the other one is filled from the next.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use p2pmem::storage::{File, Op, Options as How, Request};
use serde::Serialize;

use super::dir::{Dir, Identity, identity};
use super::files::{MOST, failed, named, permit, same, shown};
use super::memory::{Memory, Place};
use super::walk::{self, Entry, Tree};
use crate::fabric::Error;
use crate::picture;

/// Of the memory at a time: the other half is at work meanwhile.
const HALF: u64 = MOST / 2;
/// Most files open in one half, where there are descriptors for so many.
const FILES: usize = 64;
/// Descriptors that are not of files in a half.
const OTHERS: u64 = 64;
/// Between two lines of progress.
const BETWEEN: Duration = Duration::from_millis(500);

/// What is to be copied.
pub(super) struct Asked<'a> {
    pub from: &'a Path,
    pub to: &'a Path,
    pub place: &'a Place,
    pub sysfs: &'a Path,
    pub how: How,
    /// What is neither a file nor a directory is left out.
    pub files_only: bool,
    /// How far it is goes to standard error.
    pub progress: bool,
}

/// What was copied.
#[derive(Serialize)]
pub(super) struct Copied {
    from: String,
    to: String,
    memory: String,
    files: usize,
    directories: usize,
    bytes: u64,
    /// Paths that were left out, each with what it is.
    left_out: Vec<String>,
    /// 10^6 bytes a second, of reading and writing together.
    rate: f64,
    /// Whether all files are what they were copied from.
    right: bool,
}

/// A part of a file that is in one half of the memory.
struct Part<'a> {
    file: &'a Entry,
    offset: u64,
    len: u64,
}

/// Parts of files, one behind the other, that fill a half at most.
struct Parts<'a> {
    files: std::slice::Iter<'a, Entry>,
    /// What is left of a file, from that byte on.
    rest: Option<(&'a Entry, u64)>,
    /// Most files in a half.
    most: usize,
}

impl<'a> Parts<'a> {
    fn next_half(&mut self, most: u64) -> Vec<Part<'a>> {
        let (mut parts, mut bytes) = (Vec::new(), 0);
        while parts.len() < self.most && bytes < most {
            let Some((file, offset)) = self.rest.take().or_else(|| self.files.next().map(|f| (f, 0))) else {
                break;
            };
            let len = (file.len - offset).min(most - bytes);
            if offset + len < file.len {
                self.rest = Some((file, offset + len));
            }
            // The next part begins where a disk can read to by itself.
            bytes += len.next_multiple_of(4096);
            parts.push(Part { file, offset, len });
        }
        parts
    }
}

/// How many files a half may have open: each has two descriptors, and there are two halves.
fn most_files() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return 1;
    }
    (limit.rlim_cur.saturating_sub(OTHERS) / 4).clamp(1, FILES as u64) as usize
}

/// Says how far it is, now and then.
struct Progress {
    shown: bool,
    begin: Instant,
    last: Instant,
    files: usize,
    bytes: u64,
}

impl Progress {
    fn new(shown: bool, tree: &Tree) -> Progress {
        let now = Instant::now();
        Progress { shown, begin: now, last: now, files: tree.files.len(), bytes: tree.bytes() }
    }

    fn say(&mut self, files: usize, bytes: u64) {
        let is_last = files == self.files;
        if !self.shown || (!is_last && self.last.elapsed() < BETWEEN) {
            return;
        }
        self.last = Instant::now();
        let rate = bytes as f64 / self.begin.elapsed().as_secs_f64() / 1e6;
        let (done, all) = (picture::bytes(bytes), picture::bytes(self.bytes));
        let end = if is_last { "\n" } else { "" };
        // Where nothing reads it, nothing is lost.
        let _ = write!(
            std::io::stderr(),
            "\r{files} of {} files, {done} of {all}, {rate:.0} MB/s   {end}",
            self.files
        );
    }
}

/// One half, which is filled and then written.
struct Half<'a> {
    parts: Vec<Part<'a>>,
    request: Request,
}

struct Copy<'a> {
    asked: &'a Asked<'a>,
    memory: Memory,
    from: Dir,
    to: Dir,
    /// What was made: nothing that takes its place is written to.
    made: RefCell<HashMap<&'a Path, Identity>>,
}

impl<'a> Copy<'a> {
    /// Makes the directories, for this user alone.
    fn make(&self, tree: &'a Tree) -> Result<(), Error> {
        for folder in tree.directories.iter().skip(1) {
            let dir = self.to.make_dir(&folder.path)?;
            self.made.borrow_mut().insert(&folder.path, identity(&dir.metadata()?));
        }
        Ok(())
    }

    fn make_file(&self, path: &'a Path) -> Result<std::fs::File, Error> {
        let file = self.to.make_file(path)?;
        let of = file.metadata().map_err(named(path))?;
        self.made.borrow_mut().insert(path, identity(&of));
        Ok(file)
    }

    /// A file of the copy, to be written, or of what is copied.
    fn reopen(&self, copy: bool, path: &Path) -> Result<std::fs::File, Error> {
        match copy {
            true => self.to.file(path, true, self.made.borrow().get(path).copied()),
            false => self.from.file(path, false, None),
        }
    }

    /// Whether all files are what they were copied from. They have their permissions then, and behind them
    /// the directories, innermost first: one may be without writers.
    fn finish(&self, tree: &Tree) -> Result<bool, Error> {
        let mut right = true;
        for file in &tree.files {
            let (from, name) = (self.reopen(false, &file.path)?, self.asked.from.join(&file.path));
            let to = self.reopen(true, &file.path)?;
            let (is, was) = (to.metadata().map_err(named(&name))?, from.metadata().map_err(named(&name))?);
            right &= is.len() == file.len && same(&from, &to, &name, file.len)?;
            permit(&to, &was, &self.asked.to.join(&file.path))?;
        }
        for folder in tree.directories.iter().rev() {
            let dir = self.to.below(&folder.path)?;
            let made = self.made.borrow().get(folder.path.as_path()).copied();
            let is = identity(&dir.metadata()?);
            if made.is_some_and(|made| made != is) {
                let path = self.asked.to.join(&folder.path);
                return Err(failed(format!("{}: it was changed meanwhile", path.display())));
            }
            dir.set_mode(folder.mode & 0o3777)?;
        }
        Ok(right)
    }

    /// Begins to read, or to write, the parts that one half of the memory has.
    fn begin(&self, parts: Vec<Part<'a>>, half: usize, write: bool) -> Result<Half<'a>, Error> {
        let mut at = self.memory.addr() + half * HALF as usize;
        let mut ops = Vec::with_capacity(parts.len());
        for part in &parts {
            let top = if write { self.asked.to } else { self.asked.from };
            let path = part.file.path.as_path();
            let file = match write {
                true if part.offset == 0 => self.make_file(path)?,
                _ => self.reopen(write, path)?,
            };
            let how = How { write, ..self.asked.how };
            let file = File::of(file.into(), &top.join(path), how).map_err(failed)?;
            ops.push((Arc::new(file), Op { write, addr: at, len: part.len as usize, offset: part.offset }));
            at += part.len.next_multiple_of(4096) as usize;
        }
        // SAFETY: each range is inside of the half, which nothing else uses until the request is done; the
        // memory is dropped after it.
        let request = unsafe { Request::submit_files(&ops) };
        Ok(Half { parts, request })
    }

    /// Waits for it; the parts, all of which have all of their bytes.
    fn end(&self, half: Half<'a>) -> Result<Vec<Part<'a>>, Error> {
        half.request.wait(None);
        for (part, result) in half.parts.iter().zip(half.request.take().unwrap_or_default()) {
            let got = result.map_err(failed)? as u64;
            if got != part.len {
                let name = self.asked.from.join(&part.file.path);
                let at = part.offset + got;
                return Err(failed(format!(
                    "{}: it ends after {at} bytes, not {}",
                    name.display(),
                    part.file.len
                )));
            }
        }
        Ok(half.parts)
    }

    fn all(&self, tree: &'a Tree) -> Result<(), Error> {
        let mut progress = Progress::new(self.asked.progress, tree);
        let mut parts = Parts { files: tree.files.iter(), rest: None, most: most_files() };
        let (mut files, mut bytes, mut which) = (0, 0, 0);
        let mut reading = Some(self.begin(parts.next_half(HALF), which, false)?);
        let mut writing: Option<Half<'a>> = None;
        while let Some(half) = reading.take() {
            let read = self.end(half)?;
            let last = read.is_empty();
            if let Some(half) = writing.take() {
                for part in self.end(half)? {
                    files += usize::from(part.offset + part.len == part.file.len);
                    bytes += part.len;
                }
                progress.say(files, bytes);
            }
            if last {
                break;
            }
            // What was read is written, and the half that was written is filled anew.
            writing = Some(self.begin(read, which, true)?);
            which = 1 - which;
            reading = Some(self.begin(parts.next_half(HALF), which, false)?);
        }
        Ok(())
    }
}

/// Makes the top directory of the copy. Another user who can write to its parent may have replaced it since:
/// the replacement has another owner.
fn make_top(to: &Path) -> Result<Dir, Error> {
    let (parent, name) = Dir::of(to)?;
    let dir = parent.make_dir(Path::new(name))?;
    if !dir.is_own()? {
        return Err(failed(format!("{}: it was changed meanwhile", to.display())));
    }
    dir.set_mode(0o700)?;
    Ok(dir)
}

pub(super) fn copy(asked: &Asked<'_>) -> Result<Copied, Error> {
    let Asked { from, to, .. } = *asked;
    walk::check_place(from, to)?;
    let top = Dir::named(from)?;
    let tree = Tree::of(&top)?;
    if let Some(others) = tree.named_others(from).filter(|_| !asked.files_only) {
        return Err(failed(format!(
            "only files and directories are copied: {others}; --files-only leaves them out"
        )));
    }
    let memory = Memory::new(asked.place, asked.sysfs, 2 * HALF)?;
    let copy = Copy { asked, memory, from: top, to: make_top(to)?, made: RefCell::default() };
    copy.make(&tree)?;
    let begin = Instant::now();
    copy.all(&tree)?;
    let took = begin.elapsed().as_secs_f64();
    let right = copy.finish(&tree)?;
    let left_out = |(path, what): &(PathBuf, &str)| format!("{} ({what})", from.join(path).display());
    Ok(Copied {
        from: from.display().to_string(),
        to: to.display().to_string(),
        memory: asked.place.to_string(),
        files: tree.files.len(),
        directories: tree.directories.len() - 1,
        bytes: tree.bytes(),
        left_out: tree.others.iter().map(left_out).collect(),
        rate: tree.bytes() as f64 / took / 1e6,
        right,
    })
}

impl Copied {
    pub fn is_right(&self) -> bool {
        self.right
    }

    pub fn text(&self) -> String {
        let mut text = format!(
            "{}: {} files, {} directories, {}, by {} memory, {:.0} MB/s\n",
            shown(&self.to),
            self.files,
            self.directories,
            picture::bytes(self.bytes),
            self.memory,
            self.rate
        );
        for name in &self.left_out {
            text += &format!("  left out: {}\n", shown(name));
        }
        text + "  contents " + if self.right { "right" } else { "WRONG" } + "\n"
    }
}
