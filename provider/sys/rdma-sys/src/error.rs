//! One error for every call.

use core::ffi::{CStr, c_int};
use std::fmt;

/// Why a call of libibverbs gave nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The library cannot be loaded: dlerror(3)'s words.
    NoLibrary(String),
    /// So is librdmacm.
    NoManager(String),
    /// The library, or the driver of the device, lacks this function.
    Missing(&'static str),
    /// The call refused, with this errno.
    Refused { call: &'static str, errno: c_int },
    /// The arguments are not ones that the call takes. Nothing was called.
    Invalid { call: &'static str, why: &'static str },
}

impl Error {
    /// What errno says now, of a call that has just failed. Some drivers fail without setting it: then EIO.
    pub(crate) fn last(call: &'static str) -> Error {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Error::Refused { call, errno: if errno == 0 { libc::EIO } else { errno } }
    }

    /// What a call returned: 0, an errno, or (of some drivers) a negative one or -1 with errno set.
    pub(crate) fn check(call: &'static str, code: c_int) -> Result<(), Error> {
        if code == 0 { Ok(()) } else { Err(Error::of(call, code)) }
    }

    /// The same of a call that has failed: what it returned is not 0.
    pub(crate) fn of(call: &'static str, code: c_int) -> Error {
        match code {
            -1 => Error::last(call),
            code => Error::Refused { call, errno: code.saturating_abs() },
        }
    }

    /// The errno, or the one that stands for this: ENOSYS for a function that is missing, as for a library,
    /// and EINVAL for arguments.
    pub fn errno(&self) -> c_int {
        match self {
            Error::NoLibrary(_) | Error::NoManager(_) | Error::Missing(_) => libc::ENOSYS,
            Error::Refused { errno, .. } => *errno,
            Error::Invalid { .. } => libc::EINVAL,
        }
    }

    /// The function that failed; none if there is no library.
    pub fn call(&self) -> Option<&'static str> {
        match self {
            Error::NoLibrary(_) | Error::NoManager(_) => None,
            Error::Missing(call) | Error::Refused { call, .. } | Error::Invalid { call, .. } => Some(call),
        }
    }

    /// Whether the library, the kernel or the device does not have the function at all.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.errno(), libc::EOPNOTSUPP | libc::ENOSYS)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoLibrary(why) => {
                write!(f, "libibverbs cannot be loaded ({why}): install rdma-core's libibverbs1")
            }
            Error::NoManager(why) => {
                write!(f, "librdmacm.so.1 is not here ({why}): install rdma-core's librdmacm1")
            }
            Error::Missing(call) if call.starts_with("rdma_") => {
                write!(f, "librdmacm.so.1 lacks {call}: use a newer rdma-core")
            }
            Error::Missing(call) => {
                write!(
                    f,
                    "{call}: this libibverbs, or the driver of the device, lacks it: use a newer rdma-core"
                )
            }
            Error::Refused { call, errno } => {
                let text = std::io::Error::from_raw_os_error(*errno);
                write!(f, "{call}: {text}")?;
                match *errno {
                    libc::ENOMEM | libc::EAGAIN if call.starts_with("ibv_reg") => {
                        f.write_str(": raise the limit of locked memory (ulimit -l)")
                    }
                    libc::EACCES | libc::EPERM if *call == "ibv_open_device" => {
                        f.write_str(": give this user access to /dev/infiniband/uverbs*")
                    }
                    _ => Ok(()),
                }
            }
            Error::Invalid { call, why } => write!(f, "{call}: {why}"),
        }
    }
}

impl std::error::Error for Error {}

/// A string in an array of the library's, to its NUL or to the end of the array.
pub(crate) fn text(array: &[core::ffi::c_char]) -> String {
    let bytes: Vec<u8> = array.iter().map(|c| *c as u8).collect();
    match CStr::from_bytes_until_nul(&bytes) {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_of_failing_keeps_the_call_and_the_errno() {
        assert_eq!(Error::check("ibv_modify_qp", 0), Ok(()));
        let refused = |errno| Error::Refused { call: "ibv_modify_qp", errno };
        assert_eq!(Error::check("ibv_modify_qp", libc::EINVAL), Err(refused(libc::EINVAL)));
        assert_eq!(Error::check("ibv_modify_qp", -libc::EINVAL), Err(refused(libc::EINVAL)));
        assert_eq!(Error::check("ibv_modify_qp", c_int::MIN).unwrap_err().errno(), c_int::MAX);
        let text = refused(libc::EINVAL).to_string();
        assert!(text.starts_with("ibv_modify_qp: Invalid argument"), "{text}");
        assert!(Error::Missing("ibv_reg_dmabuf_mr").is_unsupported());
        let missing = Error::Missing("rdma_connect").to_string();
        assert!(missing.starts_with("librdmacm.so.1 lacks rdma_connect"), "{missing}");
        assert!(!refused(libc::EINVAL).is_unsupported());
        let locked = Error::Refused { call: "ibv_reg_mr", errno: libc::ENOMEM }.to_string();
        assert!(locked.contains("ulimit -l"), "{locked}");
    }

    #[test]
    fn a_name_that_fills_its_array_is_read_to_the_end() {
        assert_eq!(text(&[b'a' as _, b'b' as _]), "ab");
        assert_eq!(text(&[b'a' as _, 0, b'b' as _]), "a");
    }
}
