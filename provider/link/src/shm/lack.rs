//! What is said where descriptors or memory lack.

use std::fmt;
use std::time::Duration;

use ipc::socket;

/// What to do about a lack.
pub(super) struct Cure;

impl fmt::Display for Cure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = socket::descriptor_limit();
        write!(
            f,
            "a peer takes up to 3 descriptors, of which this process may have {limit}: raise RLIMIT_NOFILE (ulimit -n)"
        )
    }
}

/// That a lack lasted too long.
pub(super) struct Lack(pub(super) Duration);

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no descriptors or no memory for a channel for {} ms; {Cure}", self.0.as_millis())
    }
}
