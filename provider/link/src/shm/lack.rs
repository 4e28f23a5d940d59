//! What is said where descriptors or memory lack.

use std::fmt;
use std::io;
use std::time::Duration;

use ipc::{MemoryLimit, socket};

/// What to do about a lack of that sort; what is mapped of a channel is as long as its ring.
pub(super) struct Cure<'a>(pub(super) &'a io::Error, pub(super) usize);

impl fmt::Display for Cure<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.raw_os_error() == Some(libc::ENOMEM) {
            return MemoryLimit(self.1).fmt(f);
        }
        let limit = socket::descriptor_limit();
        write!(
            f,
            "a peer takes up to 3 descriptors, of which this process may have {limit}: raise RLIMIT_NOFILE (ulimit -n)"
        )
    }
}

/// That a lack lasted too long: for how long, of what (an errno), and how many bytes that would be.
pub(super) struct Lack(pub(super) Duration, pub(super) Option<i32>, pub(super) usize);

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = io::Error::from_raw_os_error(self.1.unwrap_or(libc::EMFILE));
        write!(f, "no channel for {} ms: {why}; {}", self.0.as_millis(), Cure(&why, self.2))
    }
}
