//! Every failure as the number libfabric knows it by.

use std::ffi::CString;
use std::fmt;
use std::sync::LazyLock;

use engine::Error;
use libc::{c_char, c_int};
use libfabric_sys as fi;

/// A positive `FI_E*`: entry points return it negated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub c_int);

#[allow(dead_code, reason = "the names a door needs, whether or not today's code returns each")]
impl Errno {
    pub(crate) const AGAIN: Errno = Errno(fi::FI_EAGAIN);
    pub(crate) const ADDRNOTAVAIL: Errno = Errno(fi::FI_EADDRNOTAVAIL);
    pub(crate) const AVAIL: Errno = Errno(fi::FI_EAVAIL);
    pub(crate) const BADFLAGS: Errno = Errno(fi::FI_EBADFLAGS);
    pub(crate) const BUSY: Errno = Errno(fi::FI_EBUSY);
    pub(crate) const INVAL: Errno = Errno(fi::FI_EINVAL);
    pub(crate) const IO: Errno = Errno(fi::FI_EIO);
    pub(crate) const MSGSIZE: Errno = Errno(fi::FI_EMSGSIZE);
    pub(crate) const NOAV: Errno = Errno(fi::FI_ENOAV);
    pub(crate) const NOCQ: Errno = Errno(fi::FI_ENOCQ);
    pub(crate) const NODATA: Errno = Errno(fi::FI_ENODATA);
    pub(crate) const NOENT: Errno = Errno(fi::FI_ENOENT);
    pub(crate) const NOEQ: Errno = Errno(fi::FI_ENOEQ);
    pub(crate) const NOKEY: Errno = Errno(fi::FI_ENOKEY);
    pub(crate) const NOMEM: Errno = Errno(fi::FI_ENOMEM);
    pub(crate) const NOPROTOOPT: Errno = Errno(fi::FI_ENOPROTOOPT);
    pub(crate) const NOSYS: Errno = Errno(fi::FI_ENOSYS);
    pub(crate) const OPBADSTATE: Errno = Errno(fi::FI_EOPBADSTATE);
    pub(crate) const OPNOTSUPP: Errno = Errno(fi::FI_EOPNOTSUPP);
    pub(crate) const OTHER: Errno = Errno(fi::FI_EOTHER);
    pub(crate) const TIMEDOUT: Errno = Errno(fi::FI_ETIMEDOUT);
    pub(crate) const TOOSMALL: Errno = Errno(fi::FI_ETOOSMALL);
}

impl From<Error> for Errno {
    fn from(e: Error) -> Errno {
        Errno(match e {
            Error::Again => fi::FI_EAGAIN,
            Error::Invalid => fi::FI_EINVAL,
            Error::NoAddr => fi::FI_EADDRNOTAVAIL,
            Error::TooBig => fi::FI_EMSGSIZE,
            Error::Busy => fi::FI_EBUSY,
            Error::Truncated => fi::FI_ETRUNC,
            Error::Cancelled => fi::FI_ECANCELED,
            Error::NoMessage => fi::FI_ENOMSG,
            Error::Refused => fi::FI_ECONNREFUSED,
            Error::Reset => fi::FI_ECONNRESET,
            Error::Unreachable => fi::FI_EHOSTUNREACH,
            Error::TimedOut | Error::Overdue => fi::FI_ETIMEDOUT,
            Error::Denied => fi::FI_EACCES,
            Error::Exhausted => fi::FI_EMFILE,
            Error::BadKey => fi::FI_ENOKEY,
            Error::Access => fi::FI_EACCES,
            Error::Range => fi::FI_EINVAL,
            Error::Unsupported => fi::FI_EOPNOTSUPP,
            Error::Io => fi::FI_EIO,
            Error::Fault => fi::FI_EFAULT,
            Error::KeyInUse => fi::FI_ENOKEY,
            Error::NotFound => fi::FI_ENOENT,
            Error::Overrun => fi::FI_EOVERRUN,
            _ => fi::FI_EOTHER,
        })
    }
}

/// Every error of the engine; where several have one `FI_E*`, a provider errno is the place here.
const DETAILS: [Error; 24] = [
    Error::Again,
    Error::Invalid,
    Error::NoAddr,
    Error::TooBig,
    Error::Busy,
    Error::Truncated,
    Error::Cancelled,
    Error::NoMessage,
    Error::Refused,
    Error::Reset,
    Error::Unreachable,
    Error::Denied,
    Error::BadKey,
    Error::Access,
    Error::Range,
    Error::Unsupported,
    Error::Io,
    Error::KeyInUse,
    Error::NotFound,
    Error::Overrun,
    Error::Fault,
    Error::Exhausted,
    Error::TimedOut,
    Error::Overdue,
];
/// First number of the places: above all of libfabric's.
const FIRST_DETAIL: c_int = 4096;

/// The provider errno of an error: more exact than its `FI_E*`, or that number where it is the error's
/// alone, since there are clients that show nothing else (Open MPI's BTL).
pub(crate) fn detail(e: Error) -> c_int {
    let number = Errno::from(e);
    if error_of_only(number) == Some(e) {
        return number.0;
    }
    let at = DETAILS.iter().position(|d| *d == e);
    at.map_or(0, |at| FIRST_DETAIL + at as c_int)
}

/// The error with this number, if exactly one has it that every client may see.
fn error_of_only(number: Errno) -> Option<Error> {
    let of_all = |d: &&Error| Errno::from(**d) == number && **d != Error::Overdue;
    let mut of = DETAILS.iter().filter(of_all);
    of.next().filter(|_| of.next().is_none()).copied()
}

/// What libfabric says of an `FI_E*`.
pub(crate) fn text(number: c_int) -> String {
    let text = crate::log::core().map(|core| core.strerror(number)).unwrap_or_default();
    if text.is_empty() { format!("error {number}") } else { text }
}

/// The text of a provider errno, or of a plain `FI_E*`, in `buf` if there is one. What it returns
/// lives for ever, or as long as `buf`.
///
/// # Safety
/// `buf` is NULL or valid for `len` bytes of writes.
pub(crate) unsafe fn strerror(number: c_int, buf: *mut c_char, len: usize) -> *const c_char {
    static TEXTS: LazyLock<Vec<CString>> = LazyLock::new(|| {
        let text = |e: &Error| CString::new(e.to_string()).unwrap_or_default();
        DETAILS.iter().map(text).collect()
    });
    let number = number.wrapping_abs();
    let at = match error_of_only(Errno(number)) {
        Some(e) => DETAILS.iter().position(|d| *d == e),
        None => usize::try_from(number.wrapping_sub(FIRST_DETAIL)).ok(),
    };
    let own = at.and_then(|n| TEXTS.get(n));
    let plain;
    let text = match (own, crate::log::core()) {
        (Some(text), _) => text.as_c_str(),
        // The core's text may not live long enough to be pointed to.
        (None, Some(core)) if !buf.is_null() => {
            plain = CString::new(core.strerror(number)).unwrap_or_default();
            plain.as_c_str()
        }
        _ => c"see fi_strerror(3)",
    };
    if buf.is_null() || len == 0 {
        return match own {
            Some(text) => text.as_ptr(),
            None => c"see fi_strerror(3)".as_ptr(),
        };
    }
    // SAFETY: the caller's promise.
    unsafe { crate::text::put_text(buf, len, &text.to_string_lossy()) }
}

impl From<std::io::Error> for Errno {
    fn from(e: std::io::Error) -> Errno {
        // libfabric's numbers are the system's up to 255.
        match e.raw_os_error() {
            Some(n) if n > 0 && n < fi::FI_ERRNO_OFFSET => Errno(n),
            _ => Errno::IO,
        }
    }
}

impl From<runtime::Error> for Errno {
    fn from(e: runtime::Error) -> Errno {
        match e {
            runtime::Error::System { number, .. } => std::io::Error::from_raw_os_error(number).into(),
            _ => Errno::OTHER,
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "-FI_E({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_see_the_numbers_they_test_for() {
        for (e, n) in [
            (Error::Again, 11),
            (Error::NoMessage, 42),
            (Error::Cancelled, 125),
            (Error::Truncated, 265),
            (Error::BadKey, 266),
            (Error::KeyInUse, 266),
            (Error::Refused, 111),
            (Error::Reset, 104),
            (Error::Unreachable, 113),
            (Error::TimedOut, 110),
            (Error::Overdue, 110),
            (Error::NotFound, 2),
            (Error::Fault, 14),
            (Error::Exhausted, 24),
        ] {
            assert_eq!(Errno::from(e), Errno(n), "{e}");
        }
        // What a client shows that has words for nothing but the provider's number.
        for (e, n) in
            [(Error::Unreachable, 113), (Error::Refused, 111), (Error::Reset, 104), (Error::TimedOut, 110)]
        {
            assert_eq!(detail(e), n);
        }
        let mut all: Vec<_> = DETAILS.iter().map(|e| detail(*e)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), DETAILS.len());
        for e in DETAILS {
            // SAFETY: without a buffer nothing is written; what is returned lives for ever.
            let text = unsafe { std::ffi::CStr::from_ptr(strerror(detail(e), std::ptr::null_mut(), 0)) };
            assert_eq!(text.to_str(), Ok(&*e.to_string()));
        }
        let e = std::io::Error::from_raw_os_error(libc::EADDRINUSE);
        assert_eq!(Errno::from(e), Errno(fi::FI_EADDRINUSE));
        let e = runtime::Error::System { call: "eventfd", number: libc::EMFILE };
        assert_eq!(Errno::from(e), Errno(fi::FI_EMFILE));
        assert_eq!(Errno::from(runtime::Error::Poisoned), Errno(fi::FI_EOTHER));
    }
}
