//! Copies by devices from and to peers' memory: what is in flight, and how it ended. [`hmem::share::plan`]
//! makes them up.

use std::fmt::Display;

use hmem::pending::{HELD, PendingCopies, PendingCopy};

/// Copies in flight of one interface, each under a name of its user's.
#[derive(Debug)]
pub struct DeviceCopies<T> {
    flights: PendingCopies<T>,
}

impl<T> Default for DeviceCopies<T> {
    fn default() -> Self {
        DeviceCopies::new()
    }
}

impl<T> DeviceCopies<T> {
    /// None yet.
    pub const fn new() -> DeviceCopies<T> {
        DeviceCopies { flights: PendingCopies::new() }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// One more, which was started.
    pub fn add(&mut self, name: T, flight: Box<dyn PendingCopy>) {
        self.flights.add(name, flight);
    }

    /// One that is known to be over, and done. Asks no driver.
    pub fn over(&mut self) -> Option<T> {
        self.flights.over()
    }

    /// One that is over, if there is one, and whether it is done: asks the drivers. The log says of
    /// `endpoint` why one failed, and that they are held for long.
    pub fn poll(&mut self, endpoint: impl Display) -> Option<(T, bool)> {
        let Some((name, how)) = self.flights.poll_done() else {
            if self.flights.held() {
                log::warn!("{endpoint}: {HELD}");
            }
            return None;
        };
        if let Err(why) = &how {
            log::warn!("{endpoint}: a device's copy failed: {why}");
        }
        Some((name, how.is_ok()))
    }

    /// The name of the first for which `which` says so.
    pub fn find(&mut self, which: impl FnMut(&T) -> bool) -> Option<&mut T> {
        self.flights.find(which)
    }

    /// Waits for those for which `which` is true. Polls still return them.
    pub fn wait(&mut self, which: impl FnMut(&T) -> bool) {
        self.flights.wait(which);
    }

    /// Ends those for which `which` says so, after waiting until the device has let go of the memory.
    pub fn cancel(&mut self, which: impl FnMut(&T) -> bool) {
        self.flights.cancel(which);
    }
}

#[cfg(test)]
mod tests {
    use hmem::Error;

    use super::*;

    /// Over at the second question, and how.
    #[derive(Debug)]
    struct Two(bool, Result<bool, Error>);

    impl PendingCopy for Two {
        fn poll(&mut self) -> Result<bool, Error> {
            if std::mem::replace(&mut self.0, true) { self.1 } else { Ok(false) }
        }
    }

    #[test]
    fn a_copy_is_told_of_once_and_whether_it_is_done() {
        let mut copies = DeviceCopies::new();
        copies.add(1, Box::new(Two(false, Ok(true))));
        copies.add(2, Box::new(Two(false, Err(Error::FAULT))));
        assert_eq!((copies.poll("test"), copies.over()), (None, None));
        assert_eq!((copies.poll("test"), copies.poll("test")), (Some((1, true)), Some((2, false))));
        assert!(copies.is_empty() && copies.poll("test").is_none());
        copies.add(3, Box::new(Two(false, Ok(false))));
        assert_eq!(copies.find(|name| *name == 3), Some(&mut 3));
        copies.cancel(|name| *name == 3);
        assert!(copies.is_empty());
    }
}
