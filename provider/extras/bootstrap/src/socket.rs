//! An exchange over a socket: of `strait run`, or of processes started by hand, where rank 0 holds it.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::net::{Stream, addresses};
use crate::protocol::{Frame, Hello};
use crate::server::token;
use crate::{Address, Error, Exchange, Server};

/// What a process has to know to join.
#[derive(Clone, Debug)]
pub struct Join {
    /// This process's number.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
    /// Where they meet.
    pub address: Address,
    /// The word of the job, which may be empty.
    pub token: String,
    /// A launcher holds the exchange, and not rank 0.
    pub launcher: bool,
    /// How long processes wait for each other at the start.
    pub timeout: Duration,
}

/// A joined exchange.
#[derive(Debug)]
pub struct Socket {
    rank: usize,
    size: usize,
    stream: Stream,
    // Rank 0's, closed after its own connection.
    _server: Option<Server>,
    _file: Option<Remove>,
}

/// A file that goes with this.
#[derive(Debug)]
struct Remove(PathBuf);

impl Drop for Remove {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Join {
    /// Joins, and holds the exchange if that is this process's part.
    pub fn join(&self) -> Result<Socket, Error> {
        if self.rank >= self.size || u32::try_from(self.size).is_err() {
            return Err(Error::Environment(format!("rank {} of a job of {}", self.rank, self.size)));
        }
        let (server, file) = match self.rank == 0 && !self.launcher {
            true => self.hold()?,
            false => (None, None),
        };
        let deadline = Instant::now() + self.timeout;
        let mut pause = Duration::from_millis(1);
        loop {
            let why = match self.attempt() {
                Ok(stream) => {
                    let (rank, size) = (self.rank, self.size);
                    return Ok(Socket { rank, size, stream, _server: server, _file: file });
                }
                Err(Attempt::Refused(why)) => return Err(Error::Peers(why)),
                Err(Attempt::Later(why)) => why,
            };
            if Instant::now() >= deadline {
                return Err(Error::Peers(format!(
                    "rank {} found no exchange at {} within {:?} ({why}): start rank 0 with the same {}, or set {} \
                     to more seconds",
                    self.rank,
                    self.address,
                    self.timeout,
                    crate::names::EXCHANGE,
                    crate::names::TIMEOUT
                )));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    /// Starts the exchange, and writes its file if it has one.
    fn hold(&self) -> Result<(Option<Server>, Option<Remove>), Error> {
        let start = |at: &[Address], token: &str| Server::start(at, self.size, token, Some(self.timeout));
        match &self.address {
            Address::File(path) => {
                let (secret, name) = (token()?, token()?);
                let local = Address::Abstract(format!("strait/{name}"));
                let server = start(&[local.clone(), Address::Tcp("0.0.0.0:0".into())], &secret)?;
                let mut text = format!("{secret}\n{local}\n");
                for (host, port) in
                    addresses().iter().flat_map(|host| server.ports().iter().map(move |p| (host, p)))
                {
                    let _ = writeln!(text, "tcp:{host}:{port}");
                }
                write_file(path, &text)
                    .map_err(|e| Error::System(format!("cannot write {}: {e}", path.display())))?;
                Ok((Some(server), Some(Remove(path.clone()))))
            }
            Address::Path(path) => {
                // What an earlier job left there is in the way, one that runs is not to be disturbed.
                let refused = Stream::connect(&self.address).err().map(|e| e.kind());
                if refused == Some(ErrorKind::ConnectionRefused) {
                    let _ = std::fs::remove_file(path);
                }
                let server = start(std::slice::from_ref(&self.address), &self.token)?;
                Ok((Some(server), Some(Remove(path.clone()))))
            }
            other => Ok((Some(start(std::slice::from_ref(other), &self.token)?), None)),
        }
    }

    fn attempt(&self) -> Result<Stream, Attempt> {
        let Address::File(path) = &self.address else { return self.connect(&self.address, &self.token) };
        // Of a file that an earlier job left, nothing answers, or nothing that knows its word.
        let text = std::fs::read_to_string(path).map_err(|e| Attempt::Later(e.to_string()))?;
        let mut lines = text.lines();
        let secret = lines.next().unwrap_or_default();
        let mut why = Attempt::Later("the file names no place".into());
        for line in lines {
            match line.parse().map_err(|e: Error| Attempt::Later(e.to_string())) {
                Ok(Address::File(_)) => {}
                Ok(place) => match self.connect(&place, secret) {
                    Ok(stream) => return Ok(stream),
                    Err(refused @ Attempt::Refused(_)) => return Err(refused),
                    Err(later) => why = later,
                },
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    fn connect(&self, place: &Address, token: &str) -> Result<Stream, Attempt> {
        let later = |e: std::io::Error| Attempt::Later(e.to_string());
        let mut stream = Stream::connect(place).map_err(later)?;
        // It would read the secret, and could send this process false addresses of its peers.
        if !stream.of_this_user() {
            return Err(Attempt::Later("a process of another user listens there".into()));
        }
        stream.read_timeout(Some(self.timeout)).map_err(later)?;
        let hello =
            Hello { rank: self.rank as u32, size: self.size as u32, token: token.as_bytes().to_vec() };
        hello.write(&mut stream).map_err(later)?;
        match Frame::read(&mut stream, self.size).map_err(later)? {
            Frame::Welcome => {
                stream.read_timeout(None).map_err(later)?;
                Ok(stream)
            }
            Frame::Failed(why) => Err(Attempt::Refused(why)),
            _ => Err(Attempt::Later("what listens there is no exchange of Strait".into())),
        }
    }
}

enum Attempt {
    Later(String),
    Refused(String),
}

/// Readable by this user alone, and there at once as a whole.
fn write_file(path: &Path, text: &str) -> std::io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(new);
    let _ = std::fs::remove_file(&new);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    std::fs::rename(&new, path)
}

impl Exchange for Socket {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        Error::check_length(mine)?;
        let gone = |e: std::io::Error| Error::Peers(format!("the job's exchange has gone: {e}"));
        let sent = self.stream.write_all(&Frame::Give(mine.to_vec()).bytes());
        // A reason that came before is better than a broken pipe.
        match Frame::read(&mut self.stream, self.size) {
            Ok(Frame::All(all)) => Ok(all),
            Ok(Frame::Failed(why)) => Err(Error::Peers(why)),
            Ok(_) => Err(Error::Peers("the job's exchange sent what was not asked for".into())),
            Err(e) => Err(gone(sent.err().unwrap_or(e))),
        }
    }

    fn way(&self) -> &'static str {
        "strait"
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = self.stream.write_all(&Frame::Leave.bytes());
    }
}
