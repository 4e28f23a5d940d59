//! Cards as files of a directory that all processes of the job see.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, io, process, thread};

use crate::{Bootstrap, CARD_MOST, Error, Rank};

/// The rank of this process.
pub const RANK: &str = "STRAIT_RPIPE_RANK";
/// Processes of the job.
pub const SIZE: &str = "STRAIT_RPIPE_SIZE";
/// The directory.
pub const DIR: &str = "STRAIT_RPIPE_DIR";

/// Between two looks for a card.
const PAUSE: Duration = Duration::from_millis(2);

/// Ranks by environment variables, cards by files.
#[derive(Debug)]
pub struct FileBootstrap {
    rank: Rank,
    size: Rank,
    dir: PathBuf,
}

impl FileBootstrap {
    /// A process of a job of `size`. The directory has to be there, empty, and this user's.
    pub fn new(rank: Rank, size: Rank, dir: impl Into<PathBuf>) -> Result<FileBootstrap, Error> {
        if rank >= size {
            return Err(Error::Invalid(format!("rank {rank} of {size} processes: ranks are below the size")));
        }
        Ok(FileBootstrap { rank, size, dir: dir.into() })
    }

    /// As the environment says; `None` if it says nothing.
    pub fn from_environment() -> Result<Option<FileBootstrap>, Error> {
        let Some(dir) = env::var_os(DIR) else { return Ok(None) };
        let number = |name: &str| {
            let text = env::var(name).unwrap_or_default();
            text.parse()
                .map_err(|_| Error::Invalid(format!("{name}={text}: with {DIR} it has to be a number")))
        };
        FileBootstrap::new(number(RANK)?, number(SIZE)?, dir).map(Some)
    }

    fn path(&self, of: Rank) -> PathBuf {
        self.dir.join(format!("card.{of}"))
    }
}

fn failed(what: &str, path: &Path, e: &io::Error) -> Error {
    if let exhausted @ Error::Exhausted(_) = Error::system(&format!("{what} {}", path.display()), e) {
        return exhausted;
    }
    Error::System(format!("{what} {}: {e}; {DIR} has to be a directory of this user", path.display()))
}

impl Bootstrap for FileBootstrap {
    fn name(&self) -> &str {
        "file"
    }

    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> Rank {
        self.size
    }

    fn publish(&mut self, card: &[u8]) -> Result<(), Error> {
        // All of it appears at once, under its name.
        let made = self.dir.join(format!("making.{}.{}", self.rank, process::id()));
        fs::write(&made, card).map_err(|e| failed("writing", &made, &e))?;
        let path = self.path(self.rank);
        fs::rename(&made, &path).map_err(|e| failed("renaming to", &path, &e))
    }

    fn card(&mut self, of: Rank, until: Instant) -> Result<Vec<u8>, Error> {
        let path = self.path(of);
        loop {
            match fs::read(&path) {
                Ok(card) if card.len() <= CARD_MOST => return Ok(card),
                Ok(_) => return Err(Error::Broken(format!("{} is no card: it is too long", path.display()))),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(failed("reading", &path, &e)),
            }
            if Instant::now() >= until {
                return Err(Error::Again);
            }
            thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_found_by_rank_and_waited_for() {
        let dir = env::temp_dir().join(format!("strait-rpipe-file-{}", process::id()));
        fs::create_dir(&dir).unwrap();
        let mut one = FileBootstrap::new(0, 2, &dir).unwrap();
        let mut other = FileBootstrap::new(1, 2, &dir).unwrap();
        one.publish(b"one").unwrap();
        assert_eq!(other.card(0, Instant::now()).unwrap(), b"one");
        assert_eq!(one.card(1, Instant::now()), Err(Error::Again));
        let late = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            other.publish(b"other").unwrap();
        });
        assert_eq!(one.card(1, Instant::now() + Duration::from_secs(60)).unwrap(), b"other");
        late.join().unwrap();
        fs::write(dir.join("card.1"), [0; CARD_MOST + 1]).unwrap();
        assert!(matches!(one.card(1, Instant::now()), Err(Error::Broken(_))));
        fs::remove_dir_all(&dir).unwrap();
        assert!(one.publish(b"gone").unwrap_err().to_string().contains(DIR));
        assert!(FileBootstrap::new(2, 2, &dir).is_err());
    }
}
