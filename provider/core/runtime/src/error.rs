use std::{fmt, io};

/// Why a call on a domain failed, other than what the engine says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A panic was inside the domain.
    Poisoned,
    /// A system call failed.
    System {
        /// Which.
        call: &'static str,
        /// Its `errno`.
        number: i32,
    },
}

impl Error {
    pub(crate) fn system(call: &'static str, e: &io::Error) -> Error {
        Error::System { call, number: e.raw_os_error().unwrap_or(libc::EIO) }
    }

    /// Of the last system call of this thread.
    pub(crate) fn last(call: &'static str) -> Error {
        Error::system(call, &io::Error::last_os_error())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::Poisoned => f.write_str(
                "an internal failure was logged before, and this domain cannot be used any more; \
                 close it and open another",
            ),
            Error::System { call, number } => {
                write!(f, "{call}: {}", io::Error::from_raw_os_error(number))?;
                match number {
                    libc::EMFILE => f.write_str("; raise RLIMIT_NOFILE (ulimit -n)"),
                    libc::ENFILE => f.write_str("; raise fs.file-max"),
                    libc::ENOSPC => f.write_str("; raise fs.epoll.max_user_watches"),
                    libc::EAGAIN => f.write_str("; raise RLIMIT_NPROC (ulimit -u)"),
                    _ => Ok(()),
                }
            }
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        assert!(Error::Poisoned.to_string().contains("open another"));
        for (number, advice) in [(libc::EMFILE, "ulimit -n"), (libc::ENOSPC, "max_user_watches")] {
            let text = Error::System { call: "epoll_ctl", number }.to_string();
            assert!(text.starts_with("epoll_ctl: ") && text.contains(advice), "{text}");
        }
        assert_eq!(
            Error::system("x", &io::Error::other("y")),
            Error::System { call: "x", number: libc::EIO }
        );
    }
}
