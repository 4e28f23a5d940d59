//! The ports of this host that an endpoint may listen at.

use std::io;

/// Tries to find a free port whose other sockets are free, too.
const TRIES: usize = 17;

/// The ports that are taken where none is named: any free ones, or those of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ports(Option<(u16, u16)>);

impl Ports {
    /// Those from `first` to `last`.
    pub fn between(first: u16, last: u16) -> Ports {
        Ports(Some((first.min(last), last.max(first))))
    }

    /// The first port that `take` finds free; it answers [`io::ErrorKind::AddrInUse`] for one that is taken.
    /// 0 is any free one. Processes that start at once begin at different places of a range.
    pub fn first_free<T>(self, mut take: impl FnMut(u16) -> io::Result<T>) -> io::Result<T> {
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for port in self.tries()? {
            match take(port) {
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => last = e,
                done => return done,
            }
        }
        Err(self.exhausted(last))
    }

    fn tries(self) -> io::Result<Vec<u16>> {
        let Some((first, last)) = self.0 else { return Ok(vec![0; TRIES]) };
        let begin = u64::from_ne_bytes(crate::random()?) % (u64::from(last - first) + 1);
        Ok((first..=last).cycle().skip(begin as usize).take(usize::from(last - first) + 1).collect())
    }

    /// What is said where each one was taken.
    fn exhausted(self, e: io::Error) -> io::Error {
        let Some((first, last)) = self.0 else { return e };
        let why =
            format!("no port from {first} to {last} is free (FI_STRAIT_PORTS): {e}; give a longer range");
        io::Error::new(e.kind(), why)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_port_of_a_range_is_tried_once() {
        let mut tries = Ports::between(5000, 5009).tries().unwrap();
        tries.sort_unstable();
        assert_eq!(tries, (5000..=5009).collect::<Vec<u16>>());
        assert_eq!(Ports::between(65_535, 65_535).tries().unwrap(), [65_535]);
    }
}
