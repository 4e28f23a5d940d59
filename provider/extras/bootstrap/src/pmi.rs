//! PMI-1, as MPICH's and Intel MPI's Hydra speaks it: lines of `key=value` over a descriptor.
//!
//! The key-value space takes each key once, and shows what was put before a barrier after it.

use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use crate::{Error, Exchange};

/// Longest answer of a process manager.
const LINE: usize = 64 << 10;

/// A connection to the process manager.
#[derive(Debug)]
pub struct Pmi {
    rank: usize,
    size: usize,
    stream: UnixStream,
    space: String,
    /// Bytes in a value: half as many as the digits that fit.
    room: usize,
    key_room: usize,
    /// Exchanges done: part of each key, so that those of different exchanges differ.
    count: u64,
    /// Read behind the last line.
    rest: Vec<u8>,
}

impl Pmi {
    /// Takes the descriptor that a process manager gave to this process.
    ///
    /// # Safety
    ///
    /// The descriptor is open and a stream socket, and nothing else in the process uses it.
    pub unsafe fn of_descriptor(fd: RawFd, rank: usize, size: usize) -> Result<Pmi, Error> {
        // SAFETY: fcntl(2) takes numbers; the descriptor is ours by the caller's promise.
        if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
            return Err(Error::Environment(format!("PMI_FD is {fd}, which is no open descriptor")));
        }
        // SAFETY: the caller's promise.
        let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
        Pmi::start(stream, rank, size)
    }

    fn start(stream: UnixStream, rank: usize, size: usize) -> Result<Pmi, Error> {
        let (space, rest) = (String::new(), Vec::new());
        let mut pmi = Pmi { rank, size, stream, space, room: 0, key_room: 0, count: 0, rest };
        if rank >= size {
            return Err(Error::Environment(format!("PMI_RANK is {rank} of PMI_SIZE {size}")));
        }
        let answer = pmi.ask("init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        if field(&answer, "rc").is_some_and(|rc| rc != "0") {
            return Err(pmi.wrong(&answer));
        }
        let answer = pmi.ask("get_maxes", "maxes")?;
        let number = |name| field(&answer, name).and_then(|text| text.parse::<usize>().ok());
        let (Some(keys), Some(values)) = (number("keylen_max"), number("vallen_max")) else {
            return Err(pmi.wrong(&answer));
        };
        // One is for the NUL of C; the limits of Hydra are 64 and 1024.
        pmi.room = (values.min(LINE / 2).saturating_sub(1)) / 2;
        pmi.key_room = keys.saturating_sub(1);
        if pmi.room == 0 {
            return Err(pmi.wrong(&answer));
        }
        let answer = pmi.ask("get_my_kvsname", "my_kvsname")?;
        pmi.space = field(&answer, "kvsname").map(str::to_owned).ok_or_else(|| pmi.wrong(&answer))?;
        Ok(pmi)
    }

    /// Sends a command, and returns the answer, which has this name.
    fn ask(&mut self, command: &str, answer: &str) -> Result<String, Error> {
        let gone = |e: std::io::Error| Error::System(format!("the process manager has gone (PMI): {e}"));
        self.stream.write_all(format!("cmd={command}\n").as_bytes()).map_err(gone)?;
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line[..end]).into_owned();
                return match field(&line, "cmd") == Some(answer) {
                    true => Ok(line),
                    false => Err(self.wrong(&line)),
                };
            }
            if self.rest.len() > LINE {
                return Err(self.wrong("a line without an end"));
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(gone(std::io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => self.rest.extend(&bytes[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(gone(e)),
            }
        }
    }

    fn wrong(&self, answer: &str) -> Error {
        let shown: String = answer.chars().take(200).collect();
        Error::System(format!("the process manager's answer is not one of PMI-1: {shown:?}"))
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), Error> {
        if key.len() > self.key_room {
            return Err(Error::System(format!("PMI takes keys of {} bytes, not {key}", self.key_room)));
        }
        let command = format!("put kvsname={} key={key} value={value}", self.space);
        let answer = self.ask(&command, "put_result")?;
        if field(&answer, "rc").is_some_and(|rc| rc != "0") {
            return Err(self.wrong(&answer));
        }
        Ok(())
    }

    fn get(&mut self, key: &str) -> Result<String, Error> {
        let answer = self.ask(&format!("get kvsname={} key={key}", self.space), "get_result")?;
        match (field(&answer, "rc").unwrap_or("0"), field(&answer, "value")) {
            ("0", Some(value)) => Ok(value.to_owned()),
            _ => Err(self.wrong(&answer)),
        }
    }

    fn meet(&mut self) -> Result<(), Error> {
        self.ask("barrier_in", "barrier_out").map(|_| ())
    }

    /// Puts this process's bytes in parts: the first with how many bytes there are in all.
    fn give(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let (count, rank) = (self.count, self.rank);
        // A value of no characters is not one.
        self.put(&format!("st{count}-{rank}"), &bytes.len().to_string())?;
        for (part, chunk) in bytes.chunks(self.room).enumerate() {
            let digits: String = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
            self.put(&format!("st{count}-{rank}-{part}"), &digits)?;
        }
        Ok(())
    }

    fn take(&mut self, rank: usize) -> Result<Vec<u8>, Error> {
        let count = self.count;
        let text = self.get(&format!("st{count}-{rank}"))?;
        let len = text.parse::<usize>().ok().filter(|len| *len <= crate::LONGEST);
        let len = len.ok_or_else(|| self.wrong(&text))?;
        let mut bytes = Vec::with_capacity(len);
        for part in 0..len.div_ceil(self.room) {
            let digits = self.get(&format!("st{count}-{rank}-{part}"))?;
            let part = unhex(&digits).ok_or_else(|| self.wrong(&digits))?;
            bytes.extend(part);
        }
        match bytes.len() == len {
            true => Ok(bytes),
            false => Err(self.wrong("fewer or more bytes than were put")),
        }
    }
}

impl Exchange for Pmi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        Error::check_length(mine)?;
        self.give(mine)?;
        self.meet()?;
        let all = (0..self.size).map(|rank| self.take(rank)).collect();
        self.count += 1;
        all
    }

    fn barrier(&mut self) -> Result<(), Error> {
        self.meet()
    }

    fn way(&self) -> &'static str {
        "pmi"
    }
}

impl Drop for Pmi {
    fn drop(&mut self) {
        // A process that ends without it is taken for one that failed.
        let _ = self.ask("finalize", "finalize_ack");
    }
}

/// The value of `name=value` in a line of such, separated by blanks.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(' ')
        .find_map(|word| word.split_once('=').filter(|(key, _)| *key == name))
        .map(|(_, value)| value)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    (digits.len() % 2 == 0).then(|| digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io::{BufRead, BufReader};
    use std::sync::{Arc, Barrier, Mutex};

    use super::*;

    /// A process manager for one process: what it answers to each command.
    fn manage(mut stream: UnixStream, keys: &Mutex<HashMap<String, String>>, met: &Barrier) {
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        for line in lines {
            let line = line.unwrap();
            let key = field(&line, "key").unwrap_or_default().to_owned();
            let answer = match field(&line, "cmd").unwrap() {
                "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".into(),
                "get_maxes" => "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=16".into(),
                "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_1_0".into(),
                "put" => {
                    let value = field(&line, "value").unwrap();
                    assert!(key.len() < 64 && value.len() < 16 && !value.is_empty(), "{line}");
                    assert_eq!(field(&line, "kvsname"), Some("kvs_1_0"));
                    let before = keys.lock().unwrap().insert(key, value.into());
                    assert_eq!(before, None, "a key is put once: {line}");
                    "cmd=put_result rc=0 msg=success".into()
                }
                "get" => match keys.lock().unwrap().get(&key) {
                    Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                    None => "cmd=get_result rc=-1 msg=key_not_found value=unknown".into(),
                },
                "barrier_in" => {
                    met.wait();
                    "cmd=barrier_out".into()
                }
                "finalize" => "cmd=finalize_ack".into(),
                other => panic!("{other}"),
            };
            writeln!(stream, "{answer}").unwrap();
        }
    }

    #[test]
    fn bytes_go_in_parts_through_a_manager_with_short_values() {
        let (keys, met) = (Arc::new(Mutex::new(HashMap::new())), Arc::new(Barrier::new(3)));
        let threads: Vec<_> = (0..3)
            .map(|rank| {
                let (ours, theirs) = UnixStream::pair().unwrap();
                let (keys, met) = (keys.clone(), met.clone());
                let manager = std::thread::spawn(move || manage(theirs, &keys, &met));
                let process = std::thread::spawn(move || {
                    let mut pmi = Pmi::start(ours, rank, 3).unwrap();
                    let mine: Vec<u8> = (0..rank as u8 * 20).collect();
                    for _ in 0..2 {
                        let all = pmi.allgather(&mine).unwrap();
                        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [0, 20, 40]);
                        assert_eq!(all[2], (0..40).collect::<Vec<u8>>());
                        pmi.barrier().unwrap();
                    }
                });
                (manager, process)
            })
            .collect();
        for (manager, process) in threads {
            process.join().unwrap();
            manager.join().unwrap();
        }
    }

    #[test]
    fn a_manager_that_speaks_otherwise_or_ends_is_an_error() {
        for (said, wanted) in [
            ("cmd=response_to_init rc=-1\n", "not one of PMI-1"),
            ("hello\n", "not one of PMI-1"),
            ("", "has gone"),
        ] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(said.as_bytes()).unwrap();
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
            let error = Pmi::start(ours, 0, 1).unwrap_err();
            assert!(error.text().contains(wanted), "{said:?}: {error}");
        }
    }
}
