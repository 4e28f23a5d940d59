//! What a program has a pointer to beside pipes. What a pointer leads to is never freed, so that one of what
//! is closed is an error.

use std::collections::VecDeque;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use ipc::fence::Barrier;

use super::handles::here;
use crate::lock::Biased;
use crate::{Error, Patience};

pub(super) type Place<T> = Biased<Option<T>>;

/// All places, and those of them that are empty, the longest empty first.
type Places<T> = (Vec<&'static Place<T>>, VecDeque<&'static Place<T>>);

/// So many of what was closed last have places that are not used again: a second close, by mistake, closes
/// nothing else.
pub(super) const CLOSED: usize = 64;

/// What there is of one kind.
pub(super) struct Kept<T: 'static> {
    places: Mutex<Places<T>>,
    /// What is wrong with a pointer that leads to nothing.
    none: &'static str,
}

impl<T: Send> Kept<T> {
    pub(super) const fn new(none: &'static str) -> Kept<T> {
        Kept { places: Mutex::new((Vec::new(), VecDeque::new())), none }
    }

    fn none(&self) -> Error {
        Error::Invalid(self.none.into())
    }

    /// Keeps a value; the pointer for the program.
    pub(super) fn keep(&self, value: T, barrier: Barrier) -> Result<*mut Place<T>, Error> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, empty) = &mut *places;
        let used = if empty.len() > CLOSED { empty.pop_front() } else { None };
        let place = used.unwrap_or_else(|| {
            let place = &*Box::leak(Box::new(Biased::new(None, barrier)));
            all.push(place);
            place
        });
        match place.lock() {
            Ok(mut inside) => *inside = Some(value),
            Err(e) => {
                empty.push_back(place);
                return Err(e);
            }
        }
        Ok(ptr::from_ref(place).cast_mut())
    }

    fn place(&self, at: *mut Place<T>) -> Result<&'static Place<T>, Error> {
        here()?;
        // SAFETY: NULL, or from `keep` (the program's promise); what that gives is never freed.
        unsafe { at.as_ref() }.ok_or_else(|| self.none())
    }

    /// Does something with a value.
    pub(super) fn with<R>(
        &self,
        at: *mut Place<T>,
        body: impl FnOnce(&mut T) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut inside = self.place(at)?.lock()?;
        body(inside.as_mut().ok_or_else(|| self.none())?)
    }

    /// As [`Kept::with`]; the time of another thread's call counts toward this one's: `Again` when it is
    /// over.
    pub(super) fn with_in_time<R>(
        &self,
        at: *mut Place<T>,
        patience: Patience,
        body: impl FnOnce(&mut T) -> Result<R, Error>,
    ) -> Result<R, Error> {
        if matches!(patience, Patience::Forever) {
            return self.with(at, body);
        }
        let mut inside = self.place(at)?.lock_until(|| patience.is_over())?;
        body(inside.as_mut().ok_or_else(|| self.none())?)
    }

    /// Takes a value out.
    pub(super) fn take(&self, at: *mut Place<T>) -> Result<T, Error> {
        let place = self.place(at)?;
        let mut inside = place.lock()?;
        let value = inside.take().ok_or_else(|| self.none())?;
        drop(inside);
        self.places.lock().unwrap_or_else(PoisonError::into_inner).1.push_back(place);
        Ok(value)
    }

    /// Takes all values out that no thread is in.
    pub(super) fn take_all(&self) -> Vec<T> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, empty) = &mut *places;
        let mut values = Vec::new();
        for place in all {
            if let Some(value) = place.try_lock().and_then(|mut inside| inside.take()) {
                empty.push_back(place);
                values.push(value);
            }
        }
        values
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_call_with_a_time_does_not_wait_for_another_threads_call() {
        static KEPT: Kept<u32> = Kept::new("none");
        let at = KEPT.keep(5, Barrier::probe()).unwrap() as usize;
        let place = move || at as *mut Place<u32>;
        let (enters, entered) = mpsc::channel();
        let (leave, leaves) = mpsc::channel::<()>();
        thread::scope(|s| {
            s.spawn(move || {
                KEPT.with(place(), |_| {
                    enters.send(()).unwrap();
                    leaves.recv().unwrap();
                    Ok(())
                })
            });
            entered.recv().unwrap();
            let short = || Patience::for_a(Duration::from_millis(5));
            assert_eq!(KEPT.with_in_time(place(), short(), |n| Ok(*n)), Err(Error::Again));
            assert_eq!(KEPT.with_in_time(place(), Patience::Poll, |n| Ok(*n)), Err(Error::Again));
            leave.send(()).unwrap();
            assert_eq!(
                KEPT.with_in_time(place(), Patience::for_a(Duration::from_secs(60)), |n| Ok(*n)),
                Ok(5)
            );
        });
        assert_eq!(KEPT.take(place()), Ok(5));
        assert!(matches!(KEPT.with_in_time(place(), Patience::Poll, |n| Ok(*n)), Err(Error::Invalid(_))));
    }
}
