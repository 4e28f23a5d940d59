//! Authorization keys of applications (`auth_key` of fi_domain(3) and fi_endpoint(3)), which the tcp link
//! takes for the job's key.

use std::fmt;

use wire::session::JobKey;

use crate::errno::Errno;

/// Longest key, in bytes.
pub(crate) const LONGEST: usize = 256;

/// An application's key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct AuthKey(Vec<u8>);

impl AuthKey {
    /// The key at this place, if there is one.
    ///
    /// # Safety
    /// `key` is NULL or points to `size` bytes.
    pub(crate) unsafe fn read(key: *const u8, size: usize) -> Result<Option<AuthKey>, Errno> {
        if key.is_null() || size == 0 {
            return Ok(None);
        }
        if size > LONGEST {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller's promise.
        Ok(Some(AuthKey(unsafe { std::slice::from_raw_parts(key, size) }.to_vec())))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The job's key that is made of it.
    pub(crate) fn job(&self) -> JobKey {
        JobKey::from_secret(&self.0)
    }
}

impl fmt::Debug for AuthKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_far_as_they_are_there_and_not_shown() {
        let bytes = [7; LONGEST + 1];
        // SAFETY: each is NULL, or as many bytes as are said.
        let read = |at: usize, n| unsafe {
            AuthKey::read(if at == 0 { std::ptr::null() } else { bytes.as_ptr() }, n)
        };
        assert_eq!(read(0, 5), Ok(None));
        assert_eq!(read(1, 0), Ok(None));
        assert_eq!(read(1, LONGEST + 1), Err(Errno::INVAL));
        let key = read(1, 5).unwrap().unwrap();
        assert_eq!(key.bytes(), [7; 5]);
        assert!(key.job() == JobKey::from_secret(&[7; 5]));
        assert_eq!(format!("{key:?}"), "AuthKey(..)");
    }
}
