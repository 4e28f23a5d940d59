//! A directory that goes when this does, wherever one can be written.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The directory.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// In the directory for temporary files, or where there is none that can be written, in another one.
    pub fn new() -> Result<Scratch, String> {
        let mut places = vec![std::env::temp_dir(), "/dev/shm".into(), "/var/tmp".into()];
        places.extend(["XDG_RUNTIME_DIR", "HOME"].iter().filter_map(std::env::var_os).map(PathBuf::from));
        places.extend(std::env::current_dir());
        Scratch::in_one_of(&places)
    }

    fn in_one_of(places: &[PathBuf]) -> Result<Scratch, String> {
        let stamp = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let name = format!("strait-doctor-{}-{}", std::process::id(), stamp.as_nanos());
        let mut why = Vec::new();
        for place in places.iter().filter(|place| place.is_absolute()) {
            match make(&place.join(&name)) {
                Ok(dir) => return Ok(Scratch(dir)),
                Err(e) => why.push(format!("{}: {e}", place.display())),
            }
        }
        Err(format!(
            "no directory can be written in which processes say what they do ({}): set TMPDIR to one that can",
            why.join("; ")
        ))
    }
}

/// Makes it, and sees whether a file fits.
pub fn make(dir: &Path) -> std::io::Result<PathBuf> {
    std::fs::DirBuilder::new().mode(0o700).create(dir)?;
    let file = dir.join("room");
    let written = std::fs::write(&file, [0; 4096]).and_then(|()| std::fs::remove_file(&file));
    if let Err(e) = written {
        let _ = std::fs::remove_dir_all(dir);
        return Err(e);
    }
    Ok(dir.to_owned())
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_cannot_be_written_is_passed_over() {
        let place = std::env::temp_dir();
        let scratch = Scratch::in_one_of(&["/nonexistent".into(), "/proc".into(), place.clone()]).unwrap();
        let dir = scratch.0.clone();
        assert!(dir.starts_with(&place) && dir.is_dir(), "{dir:?}");
        drop(scratch);
        assert!(!dir.exists());
        let why = Scratch::in_one_of(&["/nonexistent".into()]).err().unwrap();
        assert!(why.contains("/nonexistent: ") && why.contains("set TMPDIR"), "{why}");
    }
}
